//! The part of Linux AIO that a call needs: io_setup(2), io_submit(2), and the ring of completions.
//!
//! `libc` has the system calls' numbers, `rustix` has nothing. Structures are those of
//! `linux/aio_abi.h` and, for the ring, of `fs/aio.c` (`struct aio_ring`), which libaio reads as
//! well.

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

/// The head of `struct aio_ring`, which io_setup(2) maps into the process. The kernel does not rely
/// on its content.
#[repr(C)]
#[derive(Debug)]
struct Ring {
    id: u32,
    len: u32,
    /// Index of the first completion that was not yet seen.
    head: AtomicU32,
    /// Index of the kernel's next completion.
    tail: AtomicU32,
    magic: u32,
}

/// A request, and the list of requests that has only this one.
#[derive(Debug)]
struct Request {
    iocb: UnsafeCell<Iocb>,
    list: UnsafeCell<[*mut Iocb; 1]>,
}

/// A context of Linux AIO with its one request: to read no bytes of a file. It counts as one event
/// of `/proc/sys/fs/aio-max-nr`, and takes one or two pages.
#[derive(Debug)]
pub(crate) struct Context {
    ring: NonNull<Ring>,
    /// The request, of which only `result_fd` changes.
    request: Box<Request>,
}

// SAFETY: a context belongs to the process, not to a thread; its ring is only accessed by atomics, and the request is
// its own.
unsafe impl Send for Context {}

impl Context {
    /// Makes a context for `file`, which must exist as long as the context is used.
    ///
    /// # Errors
    /// `ENOSYS` if the kernel is built without AIO, `EPERM` if a filter of system calls refuses it,
    /// `EAGAIN` if others have taken all of `aio-max-nr`.
    pub(crate) fn new(file: BorrowedFd<'static>) -> io::Result<Self> {
        let mut id: c_ulong = 0;
        // SAFETY: the kernel writes one word, `id`, which is valid for the call.
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
        // SAFETY: nobody else has access to the request yet.
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

    /// Reads no bytes of the file, whose completion signals `eventfd`. For a file whose reads never
    /// wait, this happens before the return.
    ///
    /// # Errors
    /// `EINVAL` if `eventfd` is no eventfd; then nothing was signalled. `EAGAIN` without memory for
    /// it.
    #[inline(always)]
    pub(crate) fn read_nothing(&self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: a context is not `Sync`, so nobody else uses the request. When io_submit returns,
        // the kernel has read the request and written its key. The request names no memory to read
        // into.
        check(unsafe {
            (*self.request.iocb.get()).result_fd = eventfd.as_raw_fd().cast_unsigned();
            let list = self.request.list.get();
            libc::syscall(libc::SYS_io_submit, self.ring.as_ptr(), 1 as c_long, list)
        })?;
        // Nobody reads completions, so all count as seen. The kernel counts the others before it
        // takes more.
        let ring = self.ring();
        ring.head.store(ring.tail.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is ours, and nobody can use it any more. It has no request under way
        // to wait for.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.ring.as_ptr()) };
    }
}

#[inline]
fn check(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
