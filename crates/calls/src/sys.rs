//! Linux AIO, as far as a call needs it: io_setup(2), io_submit(2), and the ring of completions.
//!
//! `libc` has the system calls' numbers, `rustix` has nothing. Structures are those of `linux/aio_abi.h` and, for
//! the ring, of `fs/aio.c` (`struct aio_ring`), which libaio reads as well.

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_long, c_ulong};

/// `IOCB_CMD_PREAD`
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD`: `result_fd` is an eventfd that is signalled when the request is complete.
const RESULT_FD: u32 = 1;
/// `AIO_RING_MAGIC`
const RING_MAGIC: u32 = 0xa10a_10a1;

/// `struct iocb`. A read of no bytes at all needs neither a buffer nor an offset.
#[repr(C)]
#[derive(Debug, Default)]
struct Iocb {
    data: u64,
    /// `aio_key` and `aio_rw_flags`, in an order that depends on the machine; both are 0.
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

/// The head of `struct aio_ring`, which io_setup(2) maps into the process. The kernel trusts none of it.
#[repr(C)]
#[derive(Debug)]
struct Ring {
    id: u32,
    len: u32,
    /// Completions before it were seen.
    head: AtomicU32,
    /// The kernel writes the next completion here.
    tail: AtomicU32,
    magic: u32,
}

/// A request, and the list of requests that has only this one.
#[derive(Debug)]
struct Request {
    iocb: UnsafeCell<Iocb>,
    list: UnsafeCell<[*mut Iocb; 1]>,
}

/// A context of Linux AIO with the one request that it is for: to read no bytes of a file. It stands for one event of
/// `/proc/sys/fs/aio-max-nr`, and for one or two pages.
#[derive(Debug)]
pub(crate) struct Context {
    ring: NonNull<Ring>,
    /// Nothing but its `result_fd` differs from one time to the next.
    request: Box<Request>,
}

// SAFETY: a context belongs to the process, not to a thread; its ring is only accessed by atomics, and the request is
// its own.
unsafe impl Send for Context {}

impl Context {
    /// `file` has to be there for as long as the context is used.
    ///
    /// # Errors
    /// `ENOSYS` where the kernel is built without AIO, `EPERM` where a filter of system calls refuses it, `EAGAIN`
    /// where others have taken all of `aio-max-nr`.
    pub(crate) fn new(file: BorrowedFd<'static>) -> io::Result<Self> {
        let mut id: c_ulong = 0;
        // SAFETY: the kernel writes one word, which is there.
        check(unsafe { libc::syscall(libc::SYS_io_setup, 1_u32, &raw mut id) })?;
        let ring = NonNull::new(id as *mut Ring).ok_or(io::ErrorKind::Unsupported)?;
        let iocb = Iocb {
            opcode: READ,
            fd: file.as_raw_fd().cast_unsigned(),
            flags: RESULT_FD,
            ..Iocb::default()
        };
        let request = Box::new(Request {
            iocb: UnsafeCell::new(iocb),
            list: UnsafeCell::new([std::ptr::null_mut()]),
        });
        // SAFETY: nobody else knows of it yet.
        unsafe { *request.list.get() = [request.iocb.get()] };
        let context = Self { ring, request };
        match context.ring().magic {
            RING_MAGIC => Ok(context),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    #[inline]
    fn ring(&self) -> &Ring {
        // SAFETY: a context's number is its ring's address (libaio relies on it too), page aligned and mapped until
        // `io_destroy`, which only `drop` calls. The changing `head` and `tail` are atomics; the kernel writes the
        // rest once, before `io_setup` returns.
        unsafe { self.ring.as_ref() }
    }

    /// Reads no bytes of the file, which signals `eventfd` when it is done: before this returns, for a file whose
    /// reads never wait.
    ///
    /// # Errors
    /// `EINVAL` where `eventfd` is no eventfd; nothing was signalled then. `EAGAIN` without memory for it.
    #[inline]
    pub(crate) fn read_nothing(&self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: a context is not `Sync`, so that nobody else uses the request. The kernel has read it, and
        // written its key to it, when io_submit returns; it names no memory to read into.
        check(unsafe {
            (*self.request.iocb.get()).result_fd = eventfd.as_raw_fd().cast_unsigned();
            let list = self.request.list.get();
            libc::syscall(libc::SYS_io_submit, self.ring.as_ptr(), 1 as c_long, list)
        })?;
        // Nobody looks at completions: all are seen. The kernel counts those that are not before it takes more.
        let ring = self.ring();
        ring.head.store(ring.tail.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody can use it any more. No request is under way that it would wait for.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.ring.as_ptr()) };
    }
}

#[inline]
fn check(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
