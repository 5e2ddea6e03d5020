"""The inner loops of OT extension, seeds and dealt vectors, on the processor's own instructions.

Each is one pass in registers where the portable kernels and OpenSSL make several over memory, and
each gives the same bytes. numba has no vectors of its own, so what an inner loop does with them is
written as LLVM instructions (`emit`), and the loops around it are kernels like all others:

    processor   which instructions there are
    emit        vectors of blocks, loops, and functions for kernels
    aes         the key schedule, and streams in counter mode
    hashing     the hash of OT extension
    slicing     bit planes of words
    leaves      SoftSpokenOT: seeds expanded, folded, corrected and hashed
    trees       silent OT: half-trees grown and encoded
    dealt       dealt vectors, unpacked
    fetching    memory fetched ahead of its use

The instructions take the same time whatever they work on, and there is no table and no branch on
anything but sizes and positions.

Sizes: n OTs per block (a multiple of 128), w = n / 64 words per row, 128 rows; round keys are
(.., 11, 2) words, one block per round.
"""
