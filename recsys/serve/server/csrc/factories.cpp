// SPDX-License-Identifier: Apache-2.0
// Loaded into the server (LD_PRELOAD): deletes the response factories that Triton's Python backend
// forgets.
//
// The Python backend makes a response factory for each request and deletes it with the answer. If
// the instance has died, or an input of the batch cannot be read, it answers each request with an
// error but deletes no factory (ModelInstanceState::ProcessRequests of python_backend, which
// returns early; releases 24.10 to 26.06). A factory keeps its version of the model loaded: its
// threads, its shared memory and the other instances stay for as long as the server runs.
//
// Here a factory is deleted when its request receives a final error by another way. The Python
// backend creates and sends such an answer in one thread, one right after the other. A factory that
// sends answers itself, as those of decoupled models do, is none of these.

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

extern "C" {
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Response;
struct TRITONBACKEND_ResponseFactory;
struct TRITONSERVER_Error;
}

namespace {

using Request = TRITONBACKEND_Request;
using Response = TRITONBACKEND_Response;
using Factory = TRITONBACKEND_ResponseFactory;
using Error = TRITONSERVER_Error;

const uint32_t kFinal = 1;

struct Original {
  Error* (*create)(Factory**, Request*);
  Error* (*remove)(Factory*);
  Error* (*respond)(Response**, Request*);
  Error* (*send)(Response*, uint32_t flags, Error*);
} original;

template <typename Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

__attribute__((constructor)) void find_originals() {
  find(original.create, "TRITONBACKEND_ResponseFactoryNew");
  find(original.remove, "TRITONBACKEND_ResponseFactoryDelete");
  find(original.respond, "TRITONBACKEND_ResponseNew");
  find(original.send, "TRITONBACKEND_ResponseSend");
}

// The factories that exist: those of requests under way, some hundred at most.
struct Entry {
  Request* request;
  Factory* factory;
};
Entry* entries = nullptr;
size_t num_entries = 0, capacity = 0;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

thread_local struct {
  Response* response;
  Request* request;
} newest;

void remember(Request* request, Factory* factory) {
  pthread_mutex_lock(&mutex);
  if (num_entries == capacity) {
    const size_t wanted = capacity ? 2 * capacity : 64;
    Entry* grown = static_cast<Entry*>(realloc(entries, wanted * sizeof(Entry)));
    if (!grown) abort();
    entries = grown;
    capacity = wanted;
  }
  entries[num_entries++] = {request, factory};
  pthread_mutex_unlock(&mutex);
}

// Removes the newest entry with this request or this factory and returns its factory, or null.
Factory* forget(Request* request, Factory* factory) {
  Factory* found = nullptr;
  pthread_mutex_lock(&mutex);
  for (size_t i = num_entries; i-- > 0 && !found;) {
    if (entries[i].request != request && entries[i].factory != factory) continue;
    found = entries[i].factory;
    --num_entries;
    for (; i < num_entries; ++i) entries[i] = entries[i + 1];
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED Error* TRITONBACKEND_ResponseFactoryNew(Factory** factory, Request* request) {
  Error* error = original.create(factory, request);
  if (!error) remember(request, *factory);
  return error;
}

EXPORTED Error* TRITONBACKEND_ResponseFactoryDelete(Factory* factory) {
  forget(nullptr, factory);
  return original.remove(factory);
}

EXPORTED Error* TRITONBACKEND_ResponseNew(Response** response, Request* request) {
  Error* error = original.respond(response, request);
  if (!error) newest = {*response, request};
  return error;
}

EXPORTED Error* TRITONBACKEND_ResponseSend(Response* response, uint32_t flags, Error* failure) {
  Request* request = response == newest.response ? newest.request : nullptr;
  if (request) newest = {};  // another response may get the same address later
  Error* error = original.send(response, flags, failure);
  if (request && failure && (flags & kFinal)) {
    if (Factory* factory = forget(request, nullptr)) original.remove(factory);
  }
  return error;
}
