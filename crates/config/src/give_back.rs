//! Return of freed memory to the kernel.

/// Gives the memory that this process has freed back to the kernel. glibc's allocator otherwise keeps freed memory for
/// as long as anything behind it is in use: most of the 90 MB that a configuration can take. Other allocators keep
/// less.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes no pointer, and locks each arena that it trims.
    unsafe {
        libc::malloc_trim(0);
    }
}
