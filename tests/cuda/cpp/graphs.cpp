// Graphs: built, instantiated, launched.
//
// A launch runs the nodes in any order that their dependencies allow. It uses the executable graph as of the launch:
// "Already enqueued or running launches are not affected" by new parameters. Launches of one executable graph do not
// overlap.
#include "graphs.h"

#include "copies.h"
#include "modules.h"

using namespace stand_in;

namespace {

// Adds a graph's nodes to a plan, as successors of `first`. Returns a node that follows all of them.
unsigned add_to(Plan& plan, const Graph& graph, unsigned first, std::unordered_map<const Node*, unsigned>* at) {
    auto node = [&](Shared work) {
        plan.work.push_back(std::move(work));
        plan.after.emplace_back();
        plan.before.push_back(0);
        return unsigned(plan.work.size() - 1);
    };
    auto precedes = [&](unsigned before, unsigned after) {
        plan.after[before].push_back(after);
        ++plan.before[after];
    };
    std::unordered_map<const Node*, unsigned> ends;
    for (const auto& it : graph.nodes) {
        unsigned begin = node(it->work), end = begin;
        precedes(first, begin);
        for (const Node* dependency : it->dependencies) precedes(ends.at(dependency), begin);
        if (it->child != nullptr) end = add_to(plan, *it->child, begin, nullptr);
        else if (at != nullptr) (*at)[it.get()] = begin;
        ends[it.get()] = end;
    }
    unsigned last = node(nullptr);
    precedes(first, last);
    for (const auto& [_, end] : ends) precedes(end, last);
    return last;
}

std::shared_ptr<Graph> find_graph(CUgraph handle, CUresult& fault) {
    auto graph = driver().graphs.find(handle);
    fault = graph == nullptr ? driver().refuse(CUDA_ERROR_INVALID_VALUE, "a graph that does not exist (any more)")
                             : CUDA_SUCCESS;
    return graph;
}

std::shared_ptr<Executable> find_executable(CUgraphExec handle, CUresult& fault) {
    auto executable = driver().executables.find(handle);
    fault = executable == nullptr
                ? driver().refuse(CUDA_ERROR_INVALID_VALUE, "an executable graph that does not exist (any more)")
                : CUDA_SUCCESS;
    return executable;
}

// Adds a node that depends on others of its graph.
CUresult add(CUgraphNode* handle, Graph& graph, const CUgraphNode* dependencies, size_t count, Node it) {
    it.context = graph.context;
    for (size_t i = 0; i < count; ++i) {
        auto dependency = driver().nodes.find(dependencies[i]);
        bool is_its = false;
        for (const auto& node : graph.nodes) is_its |= node == dependency;
        for (size_t before = 0; before < i; ++before) is_its &= dependencies[before] != dependencies[i];
        if (!is_its)
            return driver().refuse(CUDA_ERROR_INVALID_VALUE, "a dependency named twice, or not a node of the graph");
        it.dependencies.push_back(dependency.get());
    }
    auto node = std::make_shared<Node>(std::move(it));
    graph.nodes.push_back(node);
    driver().nodes.add(std::move(node), handle);
    graph.handles.push_back(*handle);
    return CUDA_SUCCESS;
}

CUresult make_launch(const CUDA_KERNEL_NODE_PARAMS& it, Shared& work) {
    return make_launch(it.func,
                       {{it.gridDimX, it.gridDimY, it.gridDimZ}, {it.blockDimX, it.blockDimY, it.blockDimZ},
                        it.sharedMemBytes},
                       it.kernelParams, it.extra, work);
}

}  // namespace

EXPORT CUresult cuGraphCreate(CUgraph* handle, unsigned flags) {
    ENTRY(context);
    if (flags != 0) return driver().refuse(CUDA_ERROR_INVALID_VALUE, "cuGraphCreate: flags");
    auto graph = std::make_shared<Graph>();
    graph->context = current;
    driver().graphs.add(std::move(graph), handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph handle, const CUgraphNode* dependencies,
                                        size_t count, const CUDA_KERNEL_NODE_PARAMS* parameters) {
    ENTRY(context);
    CUresult fault;
    auto graph = find_graph(handle, fault);
    if (graph == nullptr) return fault;
    Node it;
    it.is_kernel = true;
    fault = make_launch(*parameters, it.work);
    return fault != CUDA_SUCCESS ? fault : add(node, *graph, dependencies, count, std::move(it));
}

EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* dependencies, size_t count,
                                     const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext) {
    ENTRY(context);
    CUresult fault;
    auto graph = find_graph(handle, fault);
    if (graph == nullptr) return fault;
    if (parameters->width == 0 || parameters->height == 0)
        return driver().refuse(CUDA_ERROR_INVALID_VALUE, "a node that fills nothing");
    Node it;
    fault = make_fill(parameters->dst, parameters->pitch, parameters->value, parameters->elementSize,
                      parameters->width, parameters->height, it.work);
    return fault != CUDA_SUCCESS ? fault : add(node, *graph, dependencies, count, std::move(it));
}

EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* dependencies, size_t count,
                                     const CUDA_MEMCPY3D* it, CUcontext) {
    ENTRY(context);
    CUresult fault;
    auto graph = find_graph(handle, fault);
    if (graph == nullptr) return fault;
    for (int type : {it->srcMemoryType, it->dstMemoryType})
        if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE)
            return driver().refuse(CUDA_ERROR_INVALID_VALUE, "a copy of neither host nor device memory");
    if (it->Depth != 1 || it->srcZ != 0 || it->dstZ != 0 || it->WidthInBytes == 0 || it->Height == 0)
        return driver().refuse(CUDA_ERROR_INVALID_VALUE, "a node that copies nothing, or more than two dimensions");
    bool to_device = it->dstMemoryType == CU_MEMORYTYPE_DEVICE, from_device = it->srcMemoryType == CU_MEMORYTYPE_DEVICE;
    Rows to{to_device ? std::uintptr_t(it->dstDevice) : reinterpret_cast<std::uintptr_t>(it->dstHost), it->dstPitch,
            to_device};
    Rows from{from_device ? std::uintptr_t(it->srcDevice) : reinterpret_cast<std::uintptr_t>(it->srcHost),
              it->srcPitch, from_device};
    to.at += it->dstY * to.pitch + it->dstXInBytes;
    from.at += it->srcY * from.pitch + it->srcXInBytes;
    Node made;
    fault = make_copy(to, from, {it->WidthInBytes, it->Height}, made.work);
    return fault != CUDA_SUCCESS ? fault : add(node, *graph, dependencies, count, std::move(made));
}

// "The child graph is cloned in this call."
EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* dependencies,
                                         size_t count, CUgraph child_handle) {
    ENTRY(context);
    CUresult fault;
    auto graph = find_graph(handle, fault);
    if (graph == nullptr) return fault;
    auto child = find_graph(child_handle, fault);
    if (child == nullptr) return fault;
    Node it;
    it.child = std::make_shared<Graph>();
    it.child->context = child->context;
    std::unordered_map<const Node*, Node*> clones;
    for (const auto& original : child->nodes) {
        auto clone = std::make_shared<Node>(*original);
        for (Node*& dependency : clone->dependencies) dependency = clones.at(dependency);
        clones[original.get()] = clone.get();
        it.child->nodes.push_back(std::move(clone));
    }
    return add(node, *graph, dependencies, count, std::move(it));
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* handle, CUgraph graph_handle, unsigned long long flags) {
    ENTRY(context);
    CUresult fault;
    auto graph = find_graph(graph_handle, fault);
    if (graph == nullptr) return fault;
    if (flags != 0) return driver().refuse(CUDA_ERROR_INVALID_VALUE, "cuGraphInstantiateWithFlags: flags");
    auto executable = std::make_shared<Executable>();
    executable->context = graph->context;
    executable->graph = std::make_shared<Graph>(*graph);
    auto plan = std::make_shared<Plan>();
    plan->work.emplace_back();
    plan->after.emplace_back();
    plan->before.push_back(0);
    add_to(*plan, *graph, 0, &executable->at);
    executable->plan = std::move(plan);
    driver().executables.add(std::move(executable), handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node_handle,
                                                  const CUDA_KERNEL_NODE_PARAMS* parameters) {
    ENTRY(context);
    CUresult fault;
    auto executable = find_executable(handle, fault);
    if (executable == nullptr) return fault;
    auto node = driver().nodes.find(node_handle);
    auto at = executable->at.find(node.get());
    if (node == nullptr || at == executable->at.end() || !node->is_kernel)
        return driver().refuse(CUDA_ERROR_INVALID_VALUE, "not a kernel's node of the graph that was instantiated");
    Shared work;
    fault = make_launch(*parameters, work);
    if (fault != CUDA_SUCCESS) return fault;
    // Pending launches keep their plan.
    if (executable->plan.use_count() > 1) executable->plan = std::make_shared<Plan>(*executable->plan);
    executable->plan->work[at->second] = std::move(work);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    ENTRY(context);
    CUresult fault;
    auto executable = find_executable(handle, fault);
    if (executable == nullptr) return fault;
    auto stream = find_stream(stream_handle, fault);
    if (stream == nullptr) return fault;
    if (stream->capture != nullptr) {
        stream->capture->invalidated = true;
        return driver().refuse(CUDA_ERROR_NOT_SUPPORTED, "a graph launched in a capture, which is not stood in for");
    }
    auto run = std::make_shared<GraphRun>();
    run->plan = executable->plan;
    run->previous = executable->last;
    run->finished = std::make_shared<Mark>();
    run->before = run->plan->before;
    run->ready = {0};
    run->left = run->plan->work.size();
    executable->last = run->finished;
    return driver().enqueue(*stream, {{}, {}, {}, std::move(run)});
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
    ENTRY(context);
    CUresult fault;
    if (find_executable(handle, fault) == nullptr) return fault;
    driver().executables.remove(handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph handle) {
    ENTRY(context);
    CUresult fault;
    auto graph = find_graph(handle, fault);
    if (graph == nullptr) return fault;
    for (CUgraphNode node : graph->handles) driver().nodes.remove(node);
    driver().graphs.remove(handle);
    return CUDA_SUCCESS;
}
