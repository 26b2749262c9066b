/* Loaded into a process before libc (LD_PRELOAD), so that a test can set its clock and cut its connections:

    $PROCESS_SHIM/clock     8 bytes, an int64 of this machine: nanoseconds that its calendar is ahead
    $PROCESS_SHIM/routes    lines "PORT OTHER": a connection to PORT on loopback goes to OTHER

The clock is read through a mapping, so a step counts at once; routes are read for each connection. What the kernel knows
of time is as it was: its timers, and the times of files.
*/

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static int (*libc_clock_gettime)(clockid_t, struct timespec *);
static int (*libc_connect)(int, const struct sockaddr *, socklen_t);
static volatile const int64_t *ahead;
static char routes_path[4096];

__attribute__((constructor)) static void load(void)
{
    char path[4096];
    const char *directory = getenv("PROCESS_SHIM");

    libc_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    libc_connect = dlsym(RTLD_NEXT, "connect");
    if (directory == NULL)
        return;
    snprintf(routes_path, sizeof routes_path, "%s/routes", directory);
    snprintf(path, sizeof path, "%s/clock", directory);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        ahead = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *found)
{
    int result = libc_clock_gettime != NULL ? libc_clock_gettime(clock, found)
                                            : (int)syscall(SYS_clock_gettime, clock, found);
    if (result == 0 && ahead != NULL && *ahead != 0
        && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t whole = found->tv_sec * SECOND + found->tv_nsec + *ahead;
        found->tv_sec = whole / SECOND;
        found->tv_nsec = whole % SECOND;
    }
    return result;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone)
{
    struct timespec now;

    if (zone != NULL)
        memset(zone, 0, sizeof(struct timezone));
    int result = clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *kept)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (kept != NULL)
        *kept = now.tv_sec;
    return now.tv_sec;
}

/* The port to go to instead, in the order of the network; the same one if there is no route. */
static in_port_t routed(in_port_t port)
{
    unsigned from, to;
    FILE *routes = routes_path[0] != '\0' ? fopen(routes_path, "re") : NULL;

    if (routes == NULL)
        return port;
    while (fscanf(routes, "%u %u", &from, &to) == 2) {
        if (htons((uint16_t)from) == port) {
            port = htons((uint16_t)to);
            break;
        }
    }
    fclose(routes);
    return port;
}

int connect(int socket, const struct sockaddr *address, socklen_t length)
{
    if (address != NULL && address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in to;
        memcpy(&to, address, sizeof to);
        if (ntohl(to.sin_addr.s_addr) >> 24 == 127) {
            to.sin_port = routed(to.sin_port);
            return libc_connect(socket, (const struct sockaddr *)&to, sizeof to);
        }
    }
    /* A JVM's sockets may be those of IPv6, also for 127.0.0.1. */
    if (address != NULL && address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
        struct sockaddr_in6 to;
        memcpy(&to, address, sizeof to);
        if (IN6_IS_ADDR_V4MAPPED(&to.sin6_addr) && to.sin6_addr.s6_addr[12] == 127) {
            to.sin6_port = routed(to.sin6_port);
            return libc_connect(socket, (const struct sockaddr *)&to, sizeof to);
        }
    }
    return libc_connect(socket, address, length);
}
