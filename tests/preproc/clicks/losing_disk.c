// SPDX-License-Identifier: Apache-2.0
// A disk that loses writes and says so at fsync only, as a quota or a network file system may.
//
// Preloaded into a program. Writes to files whose path holds LOSING_PATH go through; at fsync
// number LOSING_FSYNC of such files (from 1), all that was written to the file since its last fsync
// becomes zero, and the call fails. As in Linux, who asks later is told nothing.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Range {
  ino_t file;
  off_t start;
  size_t size;
  struct Range* next;
} Range;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Range* unsynced;
static int fsyncs;

static ino_t losing_file(int fd) {
  char link[32], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof(path) - 1);
  const char* wanted = getenv("LOSING_PATH");
  if (size < 0 || wanted == NULL) return 0;
  path[size] = 0;
  struct stat status;
  return strstr(path, wanted) != NULL && fstat(fd, &status) == 0 ? status.st_ino : 0;
}

static ssize_t real_pwrite(int fd, const void* data, size_t size, off_t offset) {
  return ((ssize_t (*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite"))(fd, data, size,
                                                                                    offset);
}

static void remember(int fd, off_t start, ssize_t size) {
  const ino_t file = losing_file(fd);
  if (file == 0 || size <= 0) return;
  Range* range = malloc(sizeof(Range));
  *range = (Range){file, start, (size_t)size, unsynced};
  unsynced = range;
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  pthread_mutex_lock(&mutex);
  const ssize_t written = real_pwrite(fd, data, size, offset);
  remember(fd, offset, written);
  pthread_mutex_unlock(&mutex);
  return written;
}

ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) {
  return pwrite(fd, data, size, offset);
}

ssize_t write(int fd, const void* data, size_t size) {
  pthread_mutex_lock(&mutex);
  const off_t offset = lseek(fd, 0, SEEK_CUR);
  const ssize_t written =
      ((ssize_t (*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write"))(fd, data, size);
  if (offset >= 0) remember(fd, offset, written);
  pthread_mutex_unlock(&mutex);
  return written;
}

int fsync(int fd) {
  const ino_t file = losing_file(fd);
  if (file == 0) return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
  pthread_mutex_lock(&mutex);
  const int is_lost = ++fsyncs == atoi(getenv("LOSING_FSYNC"));
  for (Range** at = &unsynced; *at != NULL;) {
    Range* range = *at;
    if (range->file != file) {
      at = &range->next;
      continue;
    }
    char* zeros = calloc(1, range->size);
    if (is_lost) real_pwrite(fd, zeros, range->size, range->start);
    free(zeros);
    *at = range->next;
    free(range);
  }
  pthread_mutex_unlock(&mutex);
  if (is_lost) errno = EDQUOT;
  return is_lost ? -1 : 0;
}
