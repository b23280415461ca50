//! Lets the kernel signal an eventfd: a request that completes at once, with its completion signalled there
//! (`IOCB_FLAG_RESFD`).
//!
//! This never blocks: the kernel adds to the counter under a spin lock, up to its maximum, whatever the open file's
//! flags are. It works for eventfds only.

use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::sys::Context;

/// State that all calls of the process share.
struct Common {
    /// An empty file, from which requests read nothing. It is never closed.
    empty: BorrowedFd<'static>,
    /// The context of threads that get none of their own.
    context: Mutex<Context>,
    /// Contexts of threads that have ended, kept because making and destroying one takes the kernel
    /// long.
    free: Mutex<Vec<Context>>,
}

impl Common {
    fn new() -> io::Result<Self> {
        static EMPTY: OnceLock<OwnedFd> = OnceLock::new();
        let made = memfd_create("weir-calls", MemfdFlags::CLOEXEC)?;
        let empty = EMPTY.get_or_init(|| made).as_fd();
        let context = Mutex::new(Context::new(empty)?);
        Ok(Self { empty, context, free: Mutex::default() })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn common() -> Result<&'static Common, i32> {
    static COMMON: OnceLock<Result<Common, i32>> = OnceLock::new();
    let made = COMMON.get_or_init(|| {
        Common::new().map_err(|error| error.raw_os_error().unwrap_or(libc::ENOSYS))
    });
    made.as_ref().map_err(|code| *code)
}

/// One thread's context, so that no thread waits for another.
struct Own {
    common: &'static Common,
    /// `None` if the process may not have more contexts. Then [`Common::context`] serves.
    context: Option<Context>,
}

impl Own {
    fn new() -> Result<Self, i32> {
        let common = common()?;
        let kept = lock(&common.free).pop();
        Ok(Self { common, context: kept.or_else(|| Context::new(common.empty).ok()) })
    }

    #[inline(always)]
    fn signal(&self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        match &self.context {
            Some(context) => context.read_nothing(eventfd),
            None => self.signal_with_others(eventfd),
        }
    }

    #[cold]
    fn signal_with_others(&self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        lock(&self.common.context).read_nothing(eventfd)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        lock(&self.common.free).extend(self.context.take());
    }
}

thread_local! {
    static OWN: OnceCell<Own> = const { OnceCell::new() };
}

/// Checks whether [`signal`] works in this process.
///
/// # Errors
/// The reason why not: a kernel without Linux AIO, or a filter of system calls.
pub fn available() -> io::Result<()> {
    common().map(|_| ()).map_err(io::Error::from_raw_os_error)
}

/// Adds 1 to the counter of `eventfd`. Never blocks; a counter at its maximum stays there.
///
/// # Errors
/// Nothing was signalled: the descriptor is no eventfd, the kernel had no memory, or [`available`]
/// returns the reason.
#[inline(always)]
pub fn signal(eventfd: BorrowedFd<'_>) -> io::Result<()> {
    OWN.with(|own| match own.get() {
        Some(own) => own.signal(eventfd),
        None => first(own, eventfd),
    })
}

#[cold]
fn first(own: &OnceCell<Own>, eventfd: BorrowedFd<'_>) -> io::Result<()> {
    let made = Own::new().map_err(io::Error::from_raw_os_error)?;
    own.get_or_init(|| made).signal(eventfd)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn count(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(fd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn each_signal_adds_one() {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        for _ in 0..10_000 {
            signal(fd.as_fd()).unwrap();
        }
        assert_eq!(count(&fd), 10_000);
    }

    #[test]
    fn a_full_counter_of_a_blocking_eventfd_does_not_block() {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..3 {
            signal(fd.as_fd()).unwrap();
        }
        assert_eq!(count(&fd), u64::MAX, "it stays at its end");
    }

    #[test]
    fn nothing_else_is_signalled() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for fd in [reader.as_fd(), writer.as_fd(), null.as_fd()] {
            assert_eq!(signal(fd).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn contexts_of_threads_that_ended_are_used_again() {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        for _ in 0..100 {
            thread::scope(|scope| scope.spawn(|| signal(fd.as_fd()).unwrap()).join().unwrap());
        }
        assert_eq!(count(&fd), 100);
        // The free contexts are those of this test and of tests that run at the same time.
        assert!(lock(&common().unwrap().free).len() < 50);
    }

    #[test]
    fn threads_without_a_context_of_their_own_share_one() {
        let own = Own { common: common().unwrap(), context: None };
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        own.signal(fd.as_fd()).unwrap();
        assert_eq!(count(&fd), 1);
    }
}
