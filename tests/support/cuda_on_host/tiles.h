// The warp-level operations of tiles.cuh, as the PTX ISA defines them: https://docs.nvidia.com/cuda/parallel-thread-execution,
// "Warp Level Matrix Multiply-Accumulate Instructions" and "Data Movement and Conversion Instructions: cp.async".

#define DYNAMIC_SHARED(name) unsigned char* const name = host::shared.data()

inline float wide(float16 x);
inline void narrow(float x, float16& y);

namespace host {

inline unsigned int lane() { return current % 32; }
inline Fiber& of_lane(unsigned int lane) { return fibers[current / 32 * 32 + lane]; }

// One of the two floats in register `index` of a lane.
template <typename T> float number(unsigned int lane, unsigned int index, unsigned int half) {
    return wide(T{(unsigned short)(of_lane(lane).slot[index] >> 16 * half)});
}

// Lanes 8 i to 8 i + 7 hold the addresses of the rows of matrix i; register i of each lane receives two neighbours of it.
inline void matrices(const void* row, unsigned int (&to)[4], bool transposed) {
    std::memcpy(fibers[current].slot, &row, sizeof row);
    wait();
    for (unsigned int i = 0; i < 4; i++) {
        unsigned short both[2];
        for (unsigned int e = 0; e < 2; e++) {
            unsigned int down = lane() / 4, across = lane() % 4 * 2 + e;
            if (transposed) std::swap(down, across);
            const unsigned short* from;
            std::memcpy(&from, of_lane(8 * i + down).slot, sizeof from);
            both[e] = from[across];
        }
        to[i] = both[0] | (unsigned int)both[1] << 16;
    }
    wait();
}

}  // namespace host

template <typename T>
void multiply_add(float (&sums)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1, T) {
    unsigned int* slot = host::fibers[host::current].slot;
    std::memcpy(slot, a, sizeof a);
    slot[4] = b0;
    slot[5] = b1;
    host::wait();
    for (unsigned int i = 0; i < 4; i++) {
        const unsigned int row = host::lane() / 4 + i / 2 * 8, column = host::lane() % 4 * 2 + i % 2;
        for (unsigned int k = 0; k < 16; k++)
            sums[i] += host::number<T>(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2) *
                       host::number<T>(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
    }
    host::wait();
}

inline void load_matrices(const void* row, unsigned int (&to)[4]) { host::matrices(row, to, false); }
inline void load_transposed(const void* row, unsigned int (&to)[4]) { host::matrices(row, to, true); }

inline void copy_later(void* to, const void* from, bool is_there) {
    host::is_misaligned |= ((std::size_t)to | (std::size_t)from) % 16 != 0;
    host::fibers[host::current].to_be_done.push_back({to, from, is_there});
}
inline void wait_for_copies() {
    for (const host::Copy& copy : host::fibers[host::current].to_be_done)
        copy.is_there ? std::memcpy(copy.to, copy.from, 16) : std::memset(copy.to, 0, 16);
    host::fibers[host::current].to_be_done.clear();
}

template <typename T> unsigned int pair(float first, float second, T) {
    T low, high;
    narrow(first, low);
    narrow(second, high);
    return low.bits | (unsigned int)high.bits << 16;
}
