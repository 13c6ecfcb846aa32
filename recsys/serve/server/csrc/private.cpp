// SPDX-License-Identifier: Apache-2.0
// Loaded into the server and its instances (LD_PRELOAD): hides from other users of the machine what
// tritonserver would show them, ends the server with its supervisor, and bounds what the server
// keeps of freed memory.
//
// - Every user can list the arguments of a process. An argument of tritonserver that ends with a
//   line feed and a name gets the value of that environment variable instead, which only the
//   server's own user can read. Without this library the name stays. No request can have it as a
//   key, because no header holds a line feed.
// - The Python backend calls fchmod to make its shared memory readable by all users, whatever the
//   umask. Here the umask applies.
// - RECIPES_SUPERVISOR names the process that started this one. The kernel kills this process when
//   the supervisor ends for any reason. Doing this from Python would mean forking a process that
//   has gRPC threads.
// - glibc returns a freed block to the system at once only above a threshold, which grows to 32 MiB
//   as blocks are freed. Smaller ones stay in the arenas of the server's many threads. A fixed
//   threshold returns the blocks of huge requests and unloaded versions. Instances keep glibc's
//   rule, because they allocate large blocks all the time.

#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

const char kServer[] = "tritonserver";
const int kMappedBytes = 256 << 10;

mode_t mask = 0;

const char* name_of(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

void end_with_supervisor() {
  const char* supervisor = getenv("RECIPES_SUPERVISOR");
  if (!supervisor) return;
  const pid_t expected = static_cast<pid_t>(atol(supervisor));
  unsetenv("RECIPES_SUPERVISOR");  // the parent of the instances is another process
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != expected) _exit(EXIT_FAILURE);  // it ended before the line above
}

__attribute__((constructor)) void begin(int count, char** arguments, char**) {
  mask = umask(0);
  umask(mask);
  end_with_supervisor();
  if (count < 1 || strcmp(name_of(arguments[0]), kServer) != 0) return;
  mallopt(M_MMAP_THRESHOLD, kMappedBytes);
  mallopt(M_TRIM_THRESHOLD, kMappedBytes);
  for (int i = 1; i < count; ++i) {
    const char* mark = strrchr(arguments[i], '\n');
    const char* value = mark ? getenv(mark + 1) : nullptr;
    if (!value) continue;
    const size_t length = static_cast<size_t>(mark - arguments[i]);
    char* whole = static_cast<char*>(malloc(length + strlen(value) + 1));
    if (!whole) abort();
    memcpy(whole, arguments[i], length);
    strcpy(whole + length, value);
    arguments[i] = whole;  // the kernel still shows the original text
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int fchmod(int file, mode_t mode) noexcept {
  return static_cast<int>(syscall(SYS_fchmod, file, mode & ~mask));
}
