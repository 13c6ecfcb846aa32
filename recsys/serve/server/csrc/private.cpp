// SPDX-License-Identifier: Apache-2.0
// Loaded into the server and its instances (LD_PRELOAD): keeps from other users of the machine what
// tritonserver by itself shows them, and ends the server with its supervisor.
//
// - Every user can list the arguments of a process. An argument of tritonserver that ends with a
//   line feed and a name gets the value of that variable of the environment instead, which only the
//   server's own user can read. Without this library the name stays, as a key that no request can
//   have: no header holds a line feed.
// - The Python backend makes its shared memory readable for all, whatever the umask, by fchmod.
// - The process that RECIPES_SUPERVISOR names started this one, and the kernel ends this one when
// that
//   one has ended, however it did. In Python it would take a fork of a process with threads of
//   gRPC.

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

const char kServer[] = "tritonserver";

mode_t mask = 0;

const char* name_of(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

void end_with_supervisor() {
  const char* supervisor = getenv("RECIPES_SUPERVISOR");
  if (!supervisor) return;
  const pid_t expected = static_cast<pid_t>(atol(supervisor));
  unsetenv("RECIPES_SUPERVISOR");  // the instances have another parent
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != expected) _exit(EXIT_FAILURE);  // it ended before the line above
}

__attribute__((constructor)) void begin(int count, char** arguments, char**) {
  mask = umask(0);
  umask(mask);
  end_with_supervisor();
  if (count < 1 || strcmp(name_of(arguments[0]), kServer) != 0) return;
  for (int i = 1; i < count; ++i) {
    const char* mark = strrchr(arguments[i], '\n');
    const char* value = mark ? getenv(mark + 1) : nullptr;
    if (!value) continue;
    const size_t length = static_cast<size_t>(mark - arguments[i]);
    char* whole = static_cast<char*>(malloc(length + strlen(value) + 1));
    if (!whole) abort();
    memcpy(whole, arguments[i], length);
    strcpy(whole + length, value);
    arguments[i] = whole;  // the kernel shows the text that was here before
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int fchmod(int file, mode_t mode) noexcept {
  return static_cast<int>(syscall(SYS_fchmod, file, mode & ~mask));
}
