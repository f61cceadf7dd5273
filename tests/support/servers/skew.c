/* A server's wall clock that is CLOCK_OFFSET seconds off: preloaded into mongos.
 *
 * libfaketime cannot do it: it looks up symbols when the first clock is read, which is inside the
 * start of the server's own allocator; a symbol that is missing makes the lookup allocate, and that
 * waits for itself. Here nothing allocates. Waits until a wall-clock moment are moved as well, or
 * the server would sleep an hour for every one of them. Monotonic clocks are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef int clockwait(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);

static long offset(void) {
  static long seconds;
  static int known;
  if (!known) {
    const char *given = getenv("CLOCK_OFFSET");
    seconds = given ? atol(given) : 0;
    known = 1;
  }
  return seconds;
}

static int is_wall(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, id, now);
  if (!failed && is_wall(id)) now->tv_sec += offset();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  int failed = syscall(SYS_gettimeofday, now, zone);
  if (!failed) now->tv_sec += offset();
  return failed;
}

time_t time(time_t *kept) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (kept) *kept = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t id,
                           const struct timespec *until) {
  static clockwait *real;
  if (!real) real = (clockwait *)dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  struct timespec moment = *until;
  if (is_wall(id)) moment.tv_sec -= offset();
  return real(condition, mutex, id, &moment);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, until);
}
