// Graphs as they are built, and as they are launched.
#pragma once

#include "driver.h"

namespace stand_in {

struct Node {
    Context* context = nullptr;
    Shared work;                   // one of both
    std::shared_ptr<Graph> child;
    bool is_kernel = false;
    std::vector<Node*> dependencies;  // of the same graph
};

struct Graph {
    Context* context = nullptr;
    std::vector<std::shared_ptr<Node>> nodes;  // each after those it depends on
    std::vector<CUgraphNode> handles;          // of the nodes that have one
};

struct Executable {
    Context* context = nullptr;
    std::shared_ptr<Plan> plan;
    std::unordered_map<const Node*, unsigned> at;  // where the plan has the graph's own nodes
    std::shared_ptr<const Graph> graph;            // keeps the nodes above
    std::shared_ptr<Mark> last;                    // when the last launch has finished
};

}  // namespace stand_in
