/* A disk that fails on command, for one process: preloaded, it stands before the C library's file calls.
 *
 * The control file (FOREBAY_BAD_DISK) is one array of ints, shared with the test that writes it: for each kind of call 0 (pass), an errno
 * to fail with; HANG until the test says otherwise; or below HANG a delay of that many milliseconds. Only files under
 * FOREBAY_BAD_DISK_DIR are touched. A second array counts the calls that were treated so.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READ, WRITE, ALLOCATE, PUNCH, SYNC, CREATE, LOOK, KINDS };
enum { HANG = -1 };

static volatile int *control;
static char folder[4096];

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("FOREBAY_BAD_DISK"), *where = getenv("FOREBAY_BAD_DISK_DIR");
    if (!file || !where) return;
    int fd = open(file, O_RDWR);
    if (fd < 0) return;
    void *found = mmap(NULL, 2 * KINDS * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    snprintf(folder, sizeof folder, "%s", where);
    if (found != MAP_FAILED) control = found;
}

static void pause_ms(int ms) {
    struct timespec left = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

static int ours(int fd) {
    char link[64], target[4200];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, target, sizeof target - 1);
    if (size < 0) return 0;
    target[size] = 0;
    return strncmp(target, folder, strlen(folder)) == 0;
}

/* 1: fail, errno is set. */
static int struck(int kind, int fd) {
    if (!control || !control[kind] || !ours(fd)) return 0;
    __sync_fetch_and_add(&control[KINDS + kind], 1);
    while (control[kind] == HANG) pause_ms(5);
    int told = control[kind];
    if (told < 0) pause_ms(-told);
    if (told <= 0) return 0;
    errno = told;
    return 1;
}

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name)) dlsym(RTLD_NEXT, #name); real; })
#define STAND_BEFORE(kind, type, name, params, args) type name params { return struck(kind, fd) ? -1 : REAL(name) args; }

STAND_BEFORE(READ, ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
STAND_BEFORE(READ, ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
STAND_BEFORE(READ, ssize_t, preadv, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
STAND_BEFORE(READ, ssize_t, preadv64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
STAND_BEFORE(WRITE, ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
STAND_BEFORE(WRITE, ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
STAND_BEFORE(WRITE, ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
STAND_BEFORE(WRITE, ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
STAND_BEFORE(SYNC, int, fsync, (int fd), (fd))
STAND_BEFORE(SYNC, int, fdatasync, (int fd), (fd))
STAND_BEFORE(LOOK, int, fstatvfs, (int fd, struct statvfs *found), (fd, found))
STAND_BEFORE(LOOK, int, fstatvfs64, (int fd, struct statvfs64 *found), (fd, found))
STAND_BEFORE((mode & FALLOC_FL_PUNCH_HOLE) ? PUNCH : ALLOCATE, int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
STAND_BEFORE((mode & FALLOC_FL_PUNCH_HOLE) ? PUNCH : ALLOCATE, int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))

/* What is in memory would be read without the disk: a disk that fails or hangs at reading has nothing in memory. */
static int not_in_memory(int fd, int flags) {
    if (!(flags & RWF_NOWAIT) || !control || !control[READ] || !ours(fd)) return 0;
    errno = EAGAIN;
    return 1;
}
#define READ_FLAGS(name, offset) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset at, int flags) { \
        return not_in_memory(fd, flags) || (!(flags & RWF_NOWAIT) && struck(READ, fd)) ? -1 : REAL(name)(fd, parts, count, at, flags); }
#define WRITE_FLAGS(name, offset) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset at, int flags) { \
        return struck(WRITE, fd) ? -1 : REAL(name)(fd, parts, count, at, flags); }
READ_FLAGS(preadv2, off_t)
READ_FLAGS(preadv64v2, off64_t)
WRITE_FLAGS(pwritev2, off_t)
WRITE_FLAGS(pwritev64v2, off64_t)

static mode_t mode_of(int flags, va_list rest) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0; }
#define CREATES(flags) (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE)

int openat(int fd, const char *path, int flags, ...) {
    va_list rest; va_start(rest, flags); mode_t mode = mode_of(flags, rest); va_end(rest);
    return CREATES(flags) && fd >= 0 && struck(CREATE, fd) ? -1 : REAL(openat)(fd, path, flags, mode);
}
int openat64(int fd, const char *path, int flags, ...) {
    va_list rest; va_start(rest, flags); mode_t mode = mode_of(flags, rest); va_end(rest);
    return CREATES(flags) && fd >= 0 && struck(CREATE, fd) ? -1 : REAL(openat64)(fd, path, flags, mode);
}
