// Attention and its gradients: cut a problem into units, and compute them on several threads.
#pragma once
#include "problem.h"

namespace mha {

// Returns false if memory ran out.
bool attend(const Problem& p, const Level& level);

// Write d_query, d_key and d_value. Likewise.
bool attend_vjp(const Problem& p, const Level& level);

// Whether a call without sequences takes so long that other threads are woken.
bool is_worth_threads(const Problem& p);

// The level of this name, if the processor and the system support it; null otherwise. The best one without a name.
const Level* level_named(const char* name);

// The level that computes all calls.
extern const Level* chosen;

// What XLA calls for attend and attend_vjp; null if this is compiled without XLA's headers.
extern void* const xla_handlers[2];

}  // namespace mha
