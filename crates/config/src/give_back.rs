//! Return of freed memory to the kernel.

/// Gives the memory that this process has freed back to the kernel. glibc's allocator otherwise keeps freed memory for
/// as long as anything behind it is in use: most of the 90 MB that a configuration can take. Other allocators keep
/// less.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: neither function takes a pointer, and both lock what they change.
    unsafe {
        // From now on whatever is larger is unmapped when it is freed: an answer with all counters, for example.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 * 1024);
        libc::malloc_trim(0);
    }
}
