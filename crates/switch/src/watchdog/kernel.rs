//! The state of a thread of this process in the kernel.

use std::fs::File;
use std::io::Read;

/// The limit on bytes read of a file.
const BYTES_MAX: u64 = 4096;

/// The thread's readable state: its run state, the kernel function in which it waits, its system call, and for root
/// the kernel's stack.
pub(super) fn says(thread: u32) -> String {
    let read = |name: &str| {
        let mut text = String::new();
        let file = File::open(format!("/proc/self/task/{thread}/{name}")).ok()?;
        file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let state = read("status").and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("State:"))?;
        Some(format!("state {}", line.trim()))
    });
    let wchan = read("wchan").filter(|name| !name.is_empty() && name != "0");
    let wchan = wchan.map(|name| format!("in {}", name.trim()));
    let call = read("syscall").map(|call| format!("system call {}", call.trim()));
    let stack = read("stack").filter(|stack| !stack.is_empty());
    let stack = stack.map(|stack| format!("stack {}", stack.lines().collect::<Vec<_>>().join(" ")));
    let all: Vec<_> = [state, wchan, call, stack].into_iter().flatten().collect();
    if all.is_empty() { "nothing".into() } else { all.join(", ") }
}
