// Attention and its gradients as functions that XLA calls, by the C interface of the headers that jaxlib brings:
//
//     attend       query, key, value [, sink, mask, bias, distance, lengths] -> out, lse
//     attend_vjp   query, key, value, out, lse [, ..., d_out, d_lse, lengths] -> some of d_query, d_key, d_value
//
// The attribute "options" holds an Options, and then the Sequences. Every array is dense and has all axes (batch..., ., ., .),
// so that jax.vmap may put one more in front of each; axes of length 1 broadcast. XLA's threads call this, without the GIL.
#if __has_include("xla/ffi/api/c_api.h")
#include "xla/ffi/api/c_api.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "attend.h"

namespace mha {
namespace {

struct Options {
    int64_t given;  // a bit for each array of arrays_of that is an argument or a result, and one for lengths
    int64_t has_band, low, high;
    double scale, softcap;
};

XLA_FFI_Error* error(const XLA_FFI_CallFrame& frame, XLA_FFI_Error_Code code, const char* text) {
    XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, text, code};
    return frame.api->XLA_FFI_Error_Create(&args);
}

// The number of threads of XLA's pool, as many as the process may use; 1 if it has none.
int threads_of(const XLA_FFI_CallFrame& frame) {
    int64_t count = 1;
    XLA_FFI_ThreadPool_NumThreads_Args args = {XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, nullptr, frame.ctx, &count};
    XLA_FFI_Error* without_pool = frame.api->XLA_FFI_ThreadPool_NumThreads(&args);
    if (!without_pool) return (int)count;
    XLA_FFI_Error_Destroy_Args destroy = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, without_pool};
    frame.api->XLA_FFI_Error_Destroy(&destroy);
    return 1;
}

View view_of(const XLA_FFI_Buffer& b) {
    View v = {};
    v.data = (char*)b.data, v.ndim = b.rank;
    switch (b.dtype) {
        case XLA_FFI_DataType_F32: v.format = "f", v.size = 4; break;
        case XLA_FFI_DataType_F64: v.format = "d", v.size = 8; break;
        case XLA_FFI_DataType_F16: v.format = "e", v.size = 2; break;
        case XLA_FFI_DataType_BF16: v.format = "H", v.size = 2; break;
        case XLA_FFI_DataType_PRED: v.format = "?", v.size = 1; break;
        case XLA_FFI_DataType_S32: v.format = "i", v.size = 4; break;
        default: v.format = "of another kind";
    }
    ptrdiff_t step = v.size;
    for (ptrdiff_t i = v.ndim <= MOST_AXES ? v.ndim - 1 : -1; i >= 0; --i)
        v.shape[i] = b.dims[i], v.steps[i] = step, step *= b.dims[i];
    return v;
}

// A problem, and the memory of its lengths and sequences.
struct Call {
    Problem p = {};
    int64_t* integers = nullptr;
    ~Call() { free(integers); }

    bool read(const XLA_FFI_CallFrame& frame, bool forward, Refusal& why) {
        const XLA_FFI_Args& args = frame.args;
        const XLA_FFI_Rets& rets = frame.rets;
        auto argument = [&](int64_t i) { return view_of(*(const XLA_FFI_Buffer*)args.args[i]); };
        auto result = [&](int64_t i) { return view_of(*(const XLA_FFI_Buffer*)rets.rets[i]); };
        if (args.size < 3 || rets.size < 1 || frame.attrs.size != 1 || frame.attrs.types[0] != XLA_FFI_AttrType_STRING)
            return why.give(true, "expected query, key, value, a result, and the attribute options");
        const XLA_FFI_ByteSpan& bytes = *(const XLA_FFI_ByteSpan*)frame.attrs.attrs[0];
        Options options;
        if (bytes.len < sizeof options || (bytes.len - sizeof options) % sizeof(Sequence))
            return why.give(true, "options have %zu bytes", bytes.len);
        memcpy(&options, bytes.ptr, sizeof options);
        const View first = result(0), query = argument(0), key = argument(1), value = argument(2);
        if (first.ndim < 3 || first.ndim > MOST_AXES)
            return why.give(false, "there are %td batch axes, with those of jax.vmap; expected at most %d", first.ndim - 3,
                            MAX_BATCH_AXES);
        bool alike = query.ndim == first.ndim && key.ndim == first.ndim && value.ndim == first.ndim;
        if (!alike || !kind_of(query.format, query.size, &p.kind) || p.kind > BFLOAT16)
            return why.give(true, "query, key and value do not fit the result");
        const int axes = p.batch_axes = (int)first.ndim - 3;
        for (int i = 0; i < axes; ++i) p.batch[i] = first.shape[i];
        p.heads = query.shape[axes], p.queries = query.shape[axes + 1], p.width = query.shape[axes + 2];
        p.key_heads = key.shape[axes], p.keys = key.shape[axes + 1], p.value_width = value.shape[axes + 2];
        p.scale = options.scale, p.softcap = options.softcap;
        p.has_band = options.has_band, p.low = options.low, p.high = options.high;
        if (!check_sizes(p, why)) return false;

        Array lengths;
        const Arrays arrays = arrays_of(p, forward, false);
        const Given last = {"lengths", &lengths, {1, 1, 1}, {INTEGER, INTEGER}, true, false};
        int64_t next_argument = 0, next_result = 0;
        for (int i = 0; i <= SCALES; ++i) {
            const Given& g = i < SCALES ? arrays.given[i] : last;
            if (!(options.given >> i & 1)) {
                if (!g.optional) return why.give(true, "%s is missing", g.name);
                continue;
            }
            bool has_come = g.written ? next_result < rets.size : next_argument < args.size;
            if (!has_come) return why.give(true, "%s is missing", g.name);
            if (!keep(g.written ? result(next_result++) : argument(next_argument++), g, p, why)) return false;
        }
        if (next_argument != args.size || next_result != rets.size) return why.give(true, "more arrays than options name");

        p.num_sequences = (ptrdiff_t)((bytes.len - sizeof options) / sizeof(Sequence));
        ptrdiff_t counts = lengths.data ? p.num_batch : 0;
        if (counts || p.num_sequences) {
            integers = (int64_t*)malloc((size_t)counts * sizeof(int64_t) + (size_t)p.num_sequences * sizeof(Sequence));
            if (!integers) return why.give(false, "out of memory");
        }
        for (ptrdiff_t i = 0; i < counts; ++i) integers[i] = *(const int32_t*)(lengths.data + batch_offset(p, lengths, i));
        if (counts) p.lengths = integers;
        if (p.num_sequences) {
            memcpy(integers + counts, bytes.ptr + sizeof options, (size_t)p.num_sequences * sizeof(Sequence));
            p.sequences = (const Sequence*)(integers + counts);
        }
        p.natural = p.bias.data || p.distance.data || p.sink.data;
        return check_sequences(p, why);
    }
};

XLA_FFI_Error* called(XLA_FFI_CallFrame* frame, bool forward) {
    if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata) {  // asked before the first call
        XLA_FFI_Metadata& metadata = *((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
        // what is used here is the same in versions 0.1, which gives no api, to 0.3: an XLA older than the headers can call it
        int newest = XLA_FFI_API_MINOR, there = frame->api ? frame->api->api_version.minor_version : 1;
        metadata.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, there < newest ? there : newest};
        metadata.traits = 0;
        return nullptr;
    }
    Call call;
    Refusal why;
    if (!call.read(*frame, forward, why)) return error(*frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, why.text);
    call.p.num_threads = threads_of(*frame);
    fenv_t of_xla;  // its threads compute with 0 in place of subnormal numbers, as those of the pool do not
    fegetenv(&of_xla);
    fesetenv(FE_DFL_ENV);
    bool done = forward ? attend(call.p, *chosen) : attend_vjp(call.p, *chosen);
    fesetenv(&of_xla);
    return done ? nullptr : error(*frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "out of memory");
}

XLA_FFI_Error* attend_for_xla(XLA_FFI_CallFrame* frame) { return called(frame, true); }
XLA_FFI_Error* attend_vjp_for_xla(XLA_FFI_CallFrame* frame) { return called(frame, false); }

}  // namespace

void* const xla_handlers[2] = {(void*)attend_for_xla, (void*)attend_vjp_for_xla};

}  // namespace mha
#else
#include "attend.h"

void* const mha::xla_handlers[2] = {};
#endif
