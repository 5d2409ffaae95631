// Graphs under construction, and executable graphs.
#pragma once

#include "driver.h"

namespace stand_in {

struct Node {
    Context* context = nullptr;
    Shared work;                   // exactly one of the two is set
    std::shared_ptr<Graph> child;
    bool is_kernel = false;
    std::vector<Node*> dependencies;  // in the same graph
};

struct Graph {
    Context* context = nullptr;
    std::vector<std::shared_ptr<Node>> nodes;  // in topological order
    std::vector<CUgraphNode> handles;          // of nodes that have a handle
};

struct Executable {
    Context* context = nullptr;
    std::shared_ptr<Plan> plan;
    std::unordered_map<const Node*, unsigned> at;  // positions of the graph's own nodes in the plan
    std::shared_ptr<const Graph> graph;            // keeps the nodes above
    std::shared_ptr<Mark> last;                    // reached when the last launch has finished
};

}  // namespace stand_in
