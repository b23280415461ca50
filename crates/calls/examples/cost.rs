//! The cost of one call, by each way to signal somebody else's eventfd.
//!
//! ```sh
//! cargo run --release -p weir-calls --example cost
//! ```
//!
//! Ways take turns of a few thousand calls. The output is the median of the rounds (ns) and its
//! ratio to a plain `write`, for the calling thread alone, without the threads it wakes up.
//!
//! Instructions in user space, of one way (`write`, `aio`, `watchdog`, `proxy`):
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='cost::measured*' target/release/examples/cost aio
//! ```

use std::error::Error;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use rustix::event::{EventfdFlags, eventfd};

const ROUNDS: usize = 101;
const CALLS: u32 = 2_000;

type Way = Box<dyn FnMut()>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut ways = ways()?;
    if let Some(name) = std::env::args().nth(1) {
        let way = ways.iter_mut().find(|(known, _)| known.split(' ').next() == Some(&name));
        let (_, way) = way.ok_or("no such way")?;
        way();
        measured(way);
        println!("{CALLS} calls");
        return Ok(());
    }
    let mut rounds = vec![Vec::with_capacity(ROUNDS); ways.len()];
    for _ in 0..ROUNDS {
        for ((_, way), times) in ways.iter_mut().zip(&mut rounds) {
            let start = Instant::now();
            measured(way);
            times.push(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
        }
    }
    let medians = rounds.into_iter().map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    let medians: Vec<_> = medians.collect();
    for ((name, _), median) in ways.iter().zip(&medians) {
        println!("{name:44} {median:8.0} ns  {:5.2}", median / medians[0]);
    }
    Ok(())
}

/// The function whose instructions are counted.
#[inline(never)]
fn measured(way: &mut Way) {
    for _ in 0..CALLS {
        way();
    }
}

fn ways() -> Result<Vec<(&'static str, Way)>, Box<dyn Error>> {
    let call = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
    let mut ways: Vec<(&str, Way)> = Vec::new();

    let fd = call()?;
    ways.push(("write", Box::new(move || write(&fd))));

    let fd = call()?;
    weir_calls::available()?;
    ways.push((
        "aio (read of nothing, IOCB_FLAG_RESFD)",
        Box::new(move || weir_calls::signal(fd.as_fd()).expect("an eventfd")),
    ));

    // A thread that looks at this word regularly interrupts a call that takes too long.
    static SINCE: AtomicU64 = AtomicU64::new(0);
    let (fd, start) = (call()?, Instant::now());
    ways.push((
        "watchdog (write between two stores)",
        Box::new(move || {
            SINCE.store(start.elapsed().as_nanos() as u64, Ordering::SeqCst);
            write(&fd);
            SINCE.store(0, Ordering::SeqCst);
        }),
    ));

    // This is the cost of an intermediate thread for its caller, which finds the thread asleep. The
    // thread's own cost is not included.
    let (fd, theirs) = (call()?, call()?);
    let ours = fd.try_clone()?;
    std::thread::spawn(move || {
        loop {
            let mut ready = [rustix::event::PollFd::new(&ours, rustix::event::PollFlags::IN)];
            let _ = rustix::event::poll(&mut ready, None);
            let _ = rustix::io::read(&ours, &mut [0; 8]);
            write(&theirs);
        }
    });
    ways.push(("proxy (write to a thread's eventfd)", Box::new(move || write(&fd))));

    // io_uring may be disabled by sysctl, by a filter of system calls, or not built in.
    if let Ok(ring) = IoUring::new(1) {
        let fd = call()?;
        ring.submitter().register_eventfd(fd.as_raw_fd())?;
        ways.push((
            "io_uring (nop, registered eventfd)",
            submits(ring, opcode::Nop::new().build(), fd),
        ));
    }
    if let Ok(ring) = IoUring::new(1) {
        static ONE: u64 = 1;
        let fd = call()?;
        let write = opcode::Write::new(types::Fd(fd.as_raw_fd()), (&raw const ONE).cast(), 8);
        ways.push(("io_uring (write)", submits(ring, write.build(), fd)));
    }
    Ok(ways)
}

fn write(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Submits `entry` for `fd`, and waits until it is complete.
fn submits(mut ring: IoUring, entry: Entry, fd: OwnedFd) -> Way {
    Box::new(move || {
        let _ = &fd;
        // SAFETY: the entry's descriptor and its 8 static bytes stay valid until it is complete.
        unsafe { ring.submission().push(&entry) }.expect("an empty queue");
        ring.submit_and_wait(1).expect("a ring");
        assert_eq!(ring.completion().count(), 1);
    })
}
