/* Clock, waiting and randomness of the threads that run a seed, in place of libc's; preloaded by the test itself.
 *
 * A thread named "seed-N" has a clock of its own. It begins at a fixed moment and stands still, but for the time for
 * which the thread would wait: then it leaps. Its randomness is that of N. So a seed takes no longer than its
 * computations, and is the same each time, down to the libraries' own timers, hash maps and jitter. Other threads are left alone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* 2026-01-01T00:00:00Z */
#define BEGIN 1767225600LL
/* Whoever subtracts a while from the monotonic clock stays above zero. */
#define UPTIME 100000LL

static __thread int simulated;
static __thread int64_t nanos;
static __thread uint64_t state;

static int is_simulated(void) {
    char name[16];
    if (simulated) return 1;
    if (pthread_getname_np(pthread_self(), name, sizeof name) != 0 || strncmp(name, "seed-", 5) != 0) return 0;
    simulated = 1;
    state = strtoull(name + 5, NULL, 10);
    return 1;
}

/* SplitMix64. */
static uint64_t draw(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int64_t base = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ? BEGIN : UPTIME;
    if (!is_simulated()) return (int)syscall(SYS_clock_gettime, clock, time);
    time->tv_sec = base + nanos / 1000000000;
    time->tv_nsec = nanos % 1000000000;
    return 0;
}

int epoll_wait(int epoll, struct epoll_event *events, int count, int timeout) {
    int ready;
    if (!is_simulated()) return (int)syscall(SYS_epoll_pwait, epoll, events, count, timeout, NULL, 8);
    ready = (int)syscall(SYS_epoll_pwait, epoll, events, count, 0, NULL, 8);
    if (ready != 0 || timeout == 0) return ready;
    if (timeout < 0) {
        fprintf(stderr, "seed %llu waits for ever at %lld ms\n", (unsigned long long)state, (long long)(nanos / 1000000));
        abort();
    }
    nanos += (int64_t)timeout * 1000000;
    return 0;
}

ssize_t getrandom(void *buffer, size_t length, unsigned int flags) {
    unsigned char *bytes = buffer;
    size_t index;
    if (!is_simulated()) return syscall(SYS_getrandom, buffer, length, flags);
    for (index = 0; index < length; index++) bytes[index] = (unsigned char)draw();
    return (ssize_t)length;
}
