//! Memory that was freed goes back to the kernel.

/// Gives back what this process has freed. The allocator keeps it otherwise, for as long as anything that lies behind it
/// is in use: of the 90 MB that a configuration may take, most of them. glibc's does so; others keep less.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and locks each arena that it trims.
    unsafe {
        libc::malloc_trim(0);
    }
}
