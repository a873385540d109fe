/* What happens to devices when a thread of their library stops for good.
 *
 * ggml's RPC talks to a server on a thread of its own, and its CPU backend computes on such threads. An assertion
 * there (the server has gone) cannot be undone, and the call that waits for that thread never returns. So the device
 * is lost: its queued operations fail, and a new thread takes over the queue from the one that is stuck. Both stuck
 * threads, and whatever the library holds for them, stay until the process ends. Not here: losing a device (guard.c),
 * how a queue is taken over (queue.c). */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lost.h"
#include "queue.h"

#define PATIENCE_NS 1000000000u /* how long a call of a suspected device may take to prove that it is not stuck */

/* The port of "host:port", or 0. */
static int port_of(const char *endpoint)
{
    const char *colon = strrchr(endpoint, ':');
    return colon == NULL ? 0 : atoi(colon + 1);
}

static int peer_port(int fd)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0) return -1;
    if (peer.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)(void *)&peer)->sin_port);
    if (peer.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)(void *)&peer)->sin6_port);
    return -1;
}

/* Whether a connection of this process to that port still stands. The library does not close a broken connection. */
static bool is_connected(int port)
{
    for (int fd = 0; fd < 4096; ++fd) {
        if (peer_port(fd) != port) continue;
#ifdef TCP_INFO
        struct tcp_info info;
        socklen_t size = sizeof info;
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == 1 /* ESTABLISHED */)
            return true;
#else
        char byte;
        const ssize_t there = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (there > 0 || (there < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))) return true;
#endif
    }
    return false;
}

typedef struct search {
    const char *message;
    uint64_t since;
    int found;
} search;

/* Whether a queue is inside a call that began before `since`. */
static bool is_in_call(ag_ggml_device *device, uint64_t since)
{
    bool found = false;
    pthread_mutex_lock(&device->lock);
    for (ag_ggml_queue *q = device->queues; q != NULL; q = q->next) {
        pthread_mutex_lock(&q->lock);
        found = found || (q->call_since != 0 && q->call_since <= since);
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return found;
}

static bool is_of(const ag_ggml_device *device, const char *message)
{
    char folder[AG_NAME + 8] = "ggml-";
    const char *name = device->f->ggml_backend_reg_name(device->f->ggml_backend_dev_backend_reg(device->handle));
    size_t n = strlen(folder);
    for (; *name != '\0' && *name != '[' && n + 2 < sizeof folder; ++name)
        folder[n++] = (char)(*name >= 'A' && *name <= 'Z' ? *name - 'A' + 'a' : *name);
    folder[n] = '\0';
    return strstr(message, folder) != NULL;
}

static void lose(ag_ggml_device *device, search *s, const char *what)
{
    char text[256];
    const char *name = strrchr(s->message, '/'); /* the file without the folder in which it was compiled */
    snprintf(text, sizeof text, "%s: %.200s", what, name != NULL ? name + 1 : s->message);
    ag_error *error = ag_error_new(AG_DEVICE_ERROR, device->name, "lost", NULL, text);
    ++s->found;
    ag_ggml_lose(device, error);
    ag_error_unref(error);
}

static void lose_unconnected(ag_ggml_device *device, void *user)
{
    search *s = user;
    if (!device->remote || !is_of(device, s->message)) return;
    if (atomic_load(&device->lost) != NULL) return;
    if (is_connected(port_of(device->f->ggml_backend_dev_description(device->handle)))) return;
    lose(device, s, "the server has gone");
}

static void lose_stuck(ag_ggml_device *device, void *user)
{
    search *s = user;
    if (!is_of(device, s->message) || !is_in_call(device, s->since)) return;
    lose(device, s, "a thread of the library met an assertion");
}

void ag_ggml_stranded(const char *message)
{
    search s = {.message = message, .since = ag_now()};
    ag_ggml_each_device(lose_unconnected, &s);
    if (s.found == 0) {
        usleep(PATIENCE_NS / 1000);
        ag_ggml_each_device(lose_stuck, &s);
    }
    if (s.found == 0) fprintf(stderr, "aggml: a thread of ggml stopped, and it is not known whose: %s\n", message);
}
