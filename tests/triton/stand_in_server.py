# SPDX-License-Identifier: Apache-2.0
"""A `tritonserver` that says that it is ready, and nothing else once a file is there.

No real server does that when it is asked to. It takes the real one's arguments and has one model.
"""

import argparse
import http.server
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

SILENT = "STAND_IN_IS_SILENT"
"""Variable with the path of that file."""


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    def ServerReady(self, request, context):  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=True)

    def RepositoryIndex(self, request, context):  # noqa: N802
        model = {"name": "tiny", "version": "1", "state": "READY"}
        return service_pb2.RepositoryIndexResponse(models=[model])

    def ModelStatistics(self, request, context):  # noqa: N802
        if Path(os.environ[SILENT]).exists():
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer")
        model = {"name": "tiny", "version": "1"}
        return service_pb2.ModelStatisticsResponse(model_stats=[model])


class _Http(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(http.HTTPStatus.OK)
        self.end_headers()

    def log_message(self, format, *args):
        pass


def main():
    parser = argparse.ArgumentParser()
    for name in ("http-port", "grpc-address", "grpc-port"):
        parser.add_argument(f"--{name}", required=True)
    flags, _ = parser.parse_known_args()
    server = grpc.server(ThreadPoolExecutor())
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Service(), server)
    server.add_insecure_port(f"{flags.grpc_address}:{flags.grpc_port}")
    server.start()
    with http.server.ThreadingHTTPServer(("127.0.0.1", int(flags.http_port)), _Http) as over_http:
        threading.Thread(target=over_http.serve_forever, daemon=True).start()
        server.wait_for_termination()


if __name__ == "__main__":
    main()
