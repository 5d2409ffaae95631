// Graphs, built and captured.
#include "check.h"

#include <thread>

namespace {

struct Scale {
    CUdeviceptr number;
    unsigned by, more;
};

CUDA_KERNEL_NODE_PARAMS parameters_of(void** args) {
    CUDA_KERNEL_NODE_PARAMS parameters{};
    parameters.func = kernel("scale");
    parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
    parameters.blockDimX = parameters.blockDimY = parameters.blockDimZ = 1;
    parameters.kernelParams = args;
    return parameters;
}

// Loads kernels before any capture, because a capture forbids it.
void start() {
    begin();
    kernel("scale");
}

CUgraph graph() {
    CUgraph graph = nullptr;
    OK(cu("cuGraphCreate", &graph, 0u));
    return graph;
}

CUresult try_add(CUgraphNode* node, CUgraph to, std::vector<CUgraphNode> after, Scale scale) {
    void* args[] = {&scale};
    auto parameters = parameters_of(args);
    return cu("cuGraphAddKernelNode_v2", node, to, static_cast<const CUgraphNode*>(after.data()), after.size(),
              static_cast<const CUDA_KERNEL_NODE_PARAMS*>(&parameters));
}

CUgraphNode add(CUgraph to, std::vector<CUgraphNode> after, Scale scale) {
    CUgraphNode node = nullptr;
    OK(try_add(&node, to, after, scale));
    return node;
}

CUgraphNode add_fill(CUgraph to, std::vector<CUgraphNode> after, CUDA_MEMSET_NODE_PARAMS fill) {
    CUgraphNode node = nullptr;
    OK(cu("cuGraphAddMemsetNode", &node, to, static_cast<const CUgraphNode*>(after.data()), after.size(),
          static_cast<const CUDA_MEMSET_NODE_PARAMS*>(&fill), static_cast<CUcontext>(nullptr)));
    return node;
}

CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec executable = nullptr;
    OK(cu("cuGraphInstantiateWithFlags", &executable, graph, 0ull));
    return executable;
}

CUresult set(CUgraphExec executable, CUgraphNode node, Scale scale) {
    void* args[] = {&scale};
    auto parameters = parameters_of(args);
    return cu("cuGraphExecKernelNodeSetParams_v2", executable, node,
              static_cast<const CUDA_KERNEL_NODE_PARAMS*>(&parameters));
}

void scale(CUstream by, Scale args) { OK(launch(kernel("scale"), 1, 1, by, args)); }

unsigned number(CUdeviceptr at) { return download<unsigned>(at, 1)[0]; }

}  // namespace

CASE(graphs_nodes_run_after_those_they_depend_on) {
    begin();
    CUdeviceptr memory = upload(std::vector<unsigned>(1, 0));
    CUgraph ordered = graph(), unordered = graph();
    CUgraphNode first = add(ordered, {}, {memory, 0, 1}), second = add(ordered, {first}, {memory, 2, 0}),
                third = add(ordered, {second, first}, {memory, 1, 3});
    add(ordered, {third}, {memory, 10, 0});
    first = add(unordered, {}, {memory, 0, 1});
    add(unordered, {first}, {memory, 2, 0});
    add(unordered, {first}, {memory, 1, 3});
    CUgraphExec right = instantiate(ordered), wrong = instantiate(unordered);
    CUstream by = stream();
    unsigned doubled_first = 0, added_first = 0;
    for (unsigned i = 0; i < 40; ++i) {
        OK(cu("cuGraphLaunch", right, by));
        synchronize(by);
        EQUAL(number(memory), 50u);
        OK(cu("cuGraphLaunch", wrong, by));
        synchronize(by);
        doubled_first += number(memory) == 5;
        added_first += number(memory) == 8;
    }
    EQUAL(doubled_first + added_first, 40u);
    CHECK(doubled_first > 5 && added_first > 5);
}

CASE(graphs_run_in_their_stream) {
    begin();
    CUdeviceptr memory = upload(std::vector<unsigned>(1, 3));
    CUgraph it = graph();
    add(it, {add(it, {}, {memory, 10, 0})}, {memory, 1, 1});
    CUgraphExec executable = instantiate(it);
    // Neither is needed any longer.
    OK(cu("cuGraphDestroy", it));
    EQUAL(cu("cuGraphDestroy", it), CUDA_ERROR_INVALID_VALUE);
    CUstream by = stream();
    scale(by, {memory, 1, 1});
    OK(cu("cuGraphLaunch", executable, by));
    scale(by, {memory, 1, 1});
    OK(cu("cuGraphLaunch", executable, by));
    OK(cu("cuGraphExecDestroy", executable));
    EQUAL(cu("cuGraphLaunch", executable, by), CUDA_ERROR_INVALID_VALUE);
    EQUAL(number(memory), 3u);
    synchronize(by);
    EQUAL(number(memory), 421u);
    EQUAL(count("graphs"), 0u);
    EQUAL(count("executable graphs"), 0u);
}

CASE(graphs_parameters_change_for_later_launches) {
    begin();
    CUdeviceptr memory = upload(std::vector<unsigned>(1, 1));
    CUgraph it = graph();
    CUgraphNode node = add(it, {}, {memory, 2, 0});
    CUgraphExec executable = instantiate(it), other = instantiate(it);
    CUstream by = stream();
    OK(cu("cuGraphLaunch", executable, by));
    OK(set(executable, node, {memory, 1, 5}));
    OK(set(executable, node, {memory, 1, 7}));
    OK(cu("cuGraphLaunch", executable, by));
    OK(cu("cuGraphLaunch", other, by));
    synchronize(by);
    EQUAL(number(memory), (1u * 2 + 7) * 2);
    CUgraphNode fill = add_fill(it, {}, {memory, 0, 0, 4, 1, 1});
    EQUAL(set(executable, fill, {memory, 1, 1}), CUDA_ERROR_INVALID_VALUE);
    CUgraphNode late = add(it, {}, {memory, 1, 1});
    EQUAL(set(executable, late, {memory, 1, 1}), CUDA_ERROR_INVALID_VALUE);
}

CASE(graphs_an_instance_never_runs_beside_itself) {
    begin();
    CUdeviceptr memory = upload(std::vector<unsigned>(1, 0));
    CUgraph it = graph();
    add(it, {}, {memory, 3, 1});
    CUgraphExec executable = instantiate(it);
    CUstream first = stream(), second = stream();
    for (unsigned i = 0; i < 20; ++i) {
        OK(cu("cuMemsetD32Async", memory, 1u, size_t(1), first));
        OK(cu("cuGraphLaunch", executable, first));
        OK(cu("cuGraphLaunch", executable, second));
        synchronize(second);
        EQUAL(number(memory), 13u);
    }
}

CASE(graphs_children_are_cloned) {
    begin();
    CUdeviceptr memory = upload(std::vector<unsigned>(1, 0));
    CUgraph child = graph(), it = graph();
    CUgraphNode inner = add(child, {}, {memory, 2, 0});
    add(child, {inner}, {memory, 1, 1});
    CUgraphNode before = add(it, {}, {memory, 0, 5}), within = nullptr;
    OK(cu("cuGraphAddChildGraphNode", &within, it, static_cast<const CUgraphNode*>(&before), size_t(1), child));
    add(it, {within}, {memory, 10, 0});
    add(child, {}, {memory, 0, 0});
    OK(cu("cuGraphDestroy", child));
    CUgraphExec executable = instantiate(it);
    CUstream by = stream();
    for (unsigned i = 0; i < 10; ++i) {
        OK(cu("cuGraphLaunch", executable, by));
        synchronize(by);
        EQUAL(number(memory), 110u);
    }
    // Nodes of a child graph are not nodes of the graph.
    EQUAL(set(executable, inner, {memory, 1, 1}), CUDA_ERROR_INVALID_VALUE);
}

CASE(graphs_fill_and_copy) {
    begin();
    CUdeviceptr memory = upload(std::vector<unsigned char>(24, 9));
    unsigned char* host = locked<unsigned char>(24);
    std::memset(host, 1, 24);
    CUgraph it = graph();
    // Two of three rows of eight bytes: four bytes from the fifth on.
    CUgraphNode fill = add_fill(it, {}, {memory + 4, 8, 0x0302, 2, 2, 2});
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE, copy.srcDevice = memory, copy.srcPitch = 8;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = host, copy.dstPitch = 8;
    copy.WidthInBytes = 8, copy.Height = 3, copy.Depth = 1;
    CUgraphNode node;
    OK(cu("cuGraphAddMemcpyNode", &node, it, static_cast<const CUgraphNode*>(&fill), size_t(1),
          static_cast<const CUDA_MEMCPY3D*>(&copy), static_cast<CUcontext>(nullptr)));
    copy.Depth = 2;
    EQUAL(cu("cuGraphAddMemcpyNode", &node, it, static_cast<const CUgraphNode*>(&fill), size_t(1),
             static_cast<const CUDA_MEMCPY3D*>(&copy), static_cast<CUcontext>(nullptr)), CUDA_ERROR_INVALID_VALUE);
    CUgraphExec executable = instantiate(it);
    CUstream by = stream();
    OK(cu("cuGraphLaunch", executable, by));
    synchronize(by);
    for (unsigned i = 0; i < 24; ++i) EQUAL(host[i], i < 16 && i % 8 >= 4 ? 2 + i % 2 : 9u);
    // Memory that a node uses may be freed before it runs.
    OK(cu("cuMemFree_v2", memory));
    OK(cu("cuGraphLaunch", executable, by));
    EQUAL(cu("cuStreamSynchronize", by), CUDA_ERROR_ILLEGAL_ADDRESS);
}

CASE(graphs_dependencies_are_checked) {
    begin();
    CUdeviceptr memory = allocate(4);
    CUgraph it = graph(), other = graph();
    CUgraphNode own = add(it, {}, {memory, 1, 1}), foreign = add(other, {}, {memory, 1, 1}), node;
    EQUAL(try_add(&node, it, {foreign}, {memory, 1, 1}), CUDA_ERROR_INVALID_VALUE);
    EQUAL(try_add(&node, it, {own, own}, {memory, 1, 1}), CUDA_ERROR_INVALID_VALUE);
    OK(cu("cuGraphDestroy", other));
    EQUAL(try_add(&node, other, {}, {memory, 1, 1}), CUDA_ERROR_INVALID_VALUE);
}

namespace {

void capture(CUstream by, int mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) {
    OK(cu("cuStreamBeginCapture_v2", by, mode));
}

CUgraph end(CUstream by) {
    CUgraph graph = nullptr;
    OK(cu("cuStreamEndCapture", by, &graph));
    return graph;
}

// A call that a capture forbids and that invalidates it.
void breaks(CUresult (*forbidden)(CUstream by)) {
    CUstream by = stream();
    CUgraph graph;
    capture(by);
    EQUAL(forbidden(by), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EQUAL(cu("cuStreamEndCapture", by, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == nullptr);
    OK(cu("cuStreamSynchronize", by));
}

}  // namespace

CASE(graphs_of_a_capture) {
    start();
    CUdeviceptr memory = upload(std::vector<unsigned>(2, 9)), other = memory + 4;
    unsigned* host = locked<unsigned>(2);
    CUstream by = stream();
    CUevent within = event();
    capture(by);
    OK(cu("cuMemcpyHtoDAsync_v2", memory, static_cast<const void*>(host), size_t(4), by));
    scale(by, {memory, 10, 0});
    OK(cu("cuEventRecord", within, by));
    OK(cu("cuStreamWaitEvent", by, within, 0u));
    EQUAL(cu("cuEventQuery", within), CUDA_ERROR_CAPTURED_EVENT);
    OK(cu("cuMemsetD32Async", other, 7u, size_t(1), by));
    scale(by, {other, 2, 0});
    OK(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(host + 1), other, size_t(4), by));
    CUgraph graph = end(by);
    synchronize(by);
    EQUAL(number(other), 9u);
    CUgraphExec executable = instantiate(graph);
    for (unsigned i = 1; i < 4; ++i) {
        host[0] = i;
        host[1] = 0;
        OK(cu("cuGraphLaunch", executable, by));
        synchronize(by);
        EQUAL(number(memory), i * 10);
        EQUAL(host[1], 14u);
    }
}

CASE(graphs_of_a_captured_product) {
    start();
    CUdeviceptr a = upload(std::vector<float>{1, 2, 3, 4}), d = upload(std::vector<float>(4, 0));
    void *handle, *desc, *layout;
    OK(call<int>(cublaslt, "cublasLtCreate", &handle));
    OK(call<int>(cublaslt, "cublasLtMatmulDescCreate", &desc, 68, 0));
    std::uint64_t two = 2;
    OK(call<int>(cublaslt, "cublasLtMatrixLayoutCreate", &layout, 0, two, two, std::int64_t(2)));
    float one = 1;
    const void* alpha = &one;
    CUstream by = stream();
    capture(by);
    OK(call<int>(cublaslt, "cublasLtMatmul", handle, desc, alpha, a, layout, a, layout, alpha, d, layout, d, layout,
                 static_cast<void*>(nullptr), static_cast<void*>(nullptr), size_t(0), by));
    CUgraphExec executable = instantiate(end(by));
    synchronize(by);
    EQUAL(download<float>(d, 1)[0], 0.0f);
    for (unsigned i = 1; i < 4; ++i) {
        OK(cu("cuGraphLaunch", executable, by));
        synchronize(by);
        // [1 3; 2 4], squared once per launch.
        EQUAL(download<float>(d, 4)[3], 22.0f * float(i));
    }
}

CASE(graphs_captures_forbid) {
    begin();
    breaks([](CUstream by) { return cu("cuStreamSynchronize", by); });
    breaks([](CUstream by) { return cu("cuStreamQuery", by); });
    breaks([](CUstream) { return cu("cuCtxSynchronize"); });
    breaks([](CUstream) { return cu("cuEventQuery", event()); });
    breaks([](CUstream) {
        CUdeviceptr memory;
        return cu("cuMemAlloc_v2", &memory, size_t(4));
    });
    static CUdeviceptr memory = allocate(100);
    breaks([](CUstream) { return cu("cuMemFree_v2", memory); });
    breaks([](CUstream by) {
        char pageable[10] = "";
        return cu("cuMemcpyHtoDAsync_v2", memory, static_cast<const void*>(pageable), size_t(10), by);
    });
    // Other threads are not restricted unless the mode is global.
    for (int mode : {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL}) {
        CUstream by = stream();
        CUgraph graph;
        capture(by, mode);
        std::thread([] { begin(); cu("cuCtxSynchronize"); }).join();
        EQUAL(cu("cuStreamEndCapture", by, &graph),
              mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    }
}

CASE(graphs_captures_are_of_one_stream_and_thread) {
    begin();
    CUstream by = stream(), other = stream();
    CUgraph graph;
    EQUAL(cu("cuStreamEndCapture", by, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    capture(by);
    EQUAL(cu("cuStreamBeginCapture_v2", by, int(CU_STREAM_CAPTURE_MODE_RELAXED)), CUDA_ERROR_INVALID_VALUE);
    std::thread([&] {
        begin();
        EQUAL(cu("cuStreamEndCapture", by, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }).join();
    CUevent within = event(), outside = event();
    OK(cu("cuEventRecord", within, by));
    EQUAL(cu("cuStreamWaitEvent", other, within, 0u), CUDA_ERROR_NOT_SUPPORTED);
    OK(cu("cuEventRecord", outside, other));
    EQUAL(cu("cuStreamWaitEvent", by, outside, 0u), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    EQUAL(cu("cuStreamEndCapture", by, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}
