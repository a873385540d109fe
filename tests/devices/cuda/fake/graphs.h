// Entries: capture and graphs.
#pragma once
#include "stream.h"

EXPORT int cuStreamBeginCapture_v2(void *s, int)
{
    ENTER("cuStreamBeginCapture");
    Stream *stream = stream_of(s);
    if (stream->capture) return INVALID_VALUE;
    stream->capture = new Graph;
    stream->after_kernel = false;
    capturing = stream;
    capture_broken = false;
    return OK;
}
EXPORT int cuStreamEndCapture(void *s, void **graph)
{
    int code = enter("cuStreamEndCapture");
    Stream *stream = stream_of(s);
    Graph *made = stream->capture;
    stream->capture = nullptr;
    capturing = nullptr;
    *graph = nullptr;
    if (!made) return INVALID_VALUE;
    if (code == OK && capture_broken) code = CAPTURE_INVALIDATED;
    if (code != OK) {
        delete made;
        return code;
    }
    count("graphs");
    *graph = made;
    return OK;
}
EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long)
{
    ENTER("cuGraphInstantiateWithFlags");
    count("graph execs");
    *exec = new std::shared_ptr<Graph>(new Graph(*static_cast<Graph *>(graph)));
    return OK;
}
struct UpdateInfo {
    int result;
    void *node, *from;
};
EXPORT int cuGraphExecUpdate_v2(void *exec, void *graph, UpdateInfo *info)
{
    ENTER("cuGraphExecUpdate");
    auto &old = *static_cast<std::shared_ptr<Graph> *>(exec);
    auto &now = *static_cast<Graph *>(graph);
    bool same = old->nodes.size() == now.nodes.size();
    for (size_t i = 0; same && i < now.nodes.size(); ++i) same = old->nodes[i].kind == now.nodes[i].kind;
    *info = {same ? 0 : 1, nullptr, nullptr};
    if (!same) return UPDATE_FAILURE;
    old = std::make_shared<Graph>(now); // a new object, since launches under way use the old one
    count("graph updates");
    return OK;
}
EXPORT int cuGraphLaunch(void *exec, void *s)
{
    ENTER("cuGraphLaunch");
    std::shared_ptr<Graph> graph = *static_cast<std::shared_ptr<Graph> *>(exec);
    count("graph launches");
    return stream_of(s)->push(nullptr, [graph] {
        for (auto &node : graph->nodes) node.run();
    });
}
EXPORT int cuGraphDestroy(void *graph)
{
    enter("cuGraphDestroy");
    count("graphs", -1);
    delete static_cast<Graph *>(graph);
    return OK;
}
EXPORT int cuGraphExecDestroy(void *exec)
{
    enter("cuGraphExecDestroy");
    count("graph execs", -1);
    delete static_cast<std::shared_ptr<Graph> *>(exec);
    return OK;
}
