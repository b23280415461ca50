//! Where a thread of this process is, as the kernel says.

use std::fs::File;
use std::io::Read;

/// Of a file that says where a thread is.
const BYTES_MAX: u64 = 4096;

/// What can be read of it: its state, the function of the kernel that it waits in, its system call, and the kernel's
/// stack for root.
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
