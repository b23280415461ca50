//! bpf(2), as `linux/bpf.h` has it: a map of sockets, a program, and the link that attaches it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long};

const BPF_MAP_CREATE: c_int = 0;
const BPF_MAP_UPDATE_ELEM: c_int = 2;
const BPF_PROG_LOAD: c_int = 5;
const BPF_LINK_CREATE: c_int = 28;

const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
/// `BPF_XDP` of `enum bpf_attach_type`.
const BPF_XDP: u32 = 37;

/// Names of objects, as `bpftool` shows them: up to 15 bytes and NUL.
type Name = [u8; 16];
const NAME: Name = *b"weir\0\0\0\0\0\0\0\0\0\0\0\0";

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    /// The destination's register in the lower four bits, the source's in the upper.
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

/// One of the structs of `union bpf_attr`. A call passes the struct's size; the kernel takes the rest as zero.
///
/// # Safety
/// The struct consists of integers without padding, and everything that it points to is readable during the call.
unsafe trait Attributes {}

fn bpf<A: Attributes>(command: c_int, attributes: &A) -> io::Result<c_long> {
    // SAFETY: the kernel reads as many bytes as it is told, from a value that is borrowed for the
    // call; of the commands of this file none writes to it.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<A>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes a call that returns a descriptor, which is closed on exec.
fn bpf_fd<A: Attributes>(command: c_int, attributes: &A) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(bpf(command, attributes)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: Name,
}
// SAFETY: integers, and bytes that end at a multiple of four.
unsafe impl Attributes for MapCreate {}

/// `BPF_MAP_CREATE`: room for one AF_XDP socket for each of `queues` queues.
pub(crate) fn create_socket_map(queues: u32) -> io::Result<OwnedFd> {
    let word = size_of::<u32>() as u32;
    let attributes = MapCreate {
        map_type: BPF_MAP_TYPE_XSKMAP,
        key_size: word,
        value_size: word,
        max_entries: queues,
        map_flags: 0,
        inner_map_fd: 0,
        numa_node: 0,
        map_name: NAME,
    };
    bpf_fd(BPF_MAP_CREATE, &attributes)
}

#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}
// SAFETY: integers, the 64-bit ones at multiples of eight; the caller makes the pointers.
unsafe impl Attributes for MapUpdate {}

/// `BPF_MAP_UPDATE_ELEM`: the frames of `queue` go to `socket`.
pub(crate) fn set_socket(
    map: BorrowedFd<'_>,
    queue: u32,
    socket: BorrowedFd<'_>,
) -> io::Result<()> {
    let socket = socket.as_raw_fd();
    let attributes = MapUpdate {
        map_fd: map.as_raw_fd().cast_unsigned(),
        zero: 0,
        key: (&raw const queue) as u64,
        value: (&raw const socket) as u64,
        flags: 0,
    };
    bpf(BPF_MAP_UPDATE_ELEM, &attributes).map(|_| ())
}

#[repr(C)]
struct ProgramLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: Name,
    prog_ifindex: u32,
    expected_attach_type: u32,
}
// SAFETY: as for `MapUpdate`.
unsafe impl Attributes for ProgramLoad {}

/// Of `linux/bpf.h`: the program takes frames in several pieces.
pub(crate) const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// `BPF_PROG_LOAD`: an XDP program with these `BPF_F_XDP_*` flags.
pub(crate) fn load_program(
    program: &[Instruction],
    license: &CStr,
    flags: u32,
) -> io::Result<OwnedFd> {
    let attributes = ProgramLoad {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: u32::try_from(program.len()).map_err(io::Error::other)?,
        insns: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: flags,
        prog_name: NAME,
        prog_ifindex: 0,
        expected_attach_type: BPF_XDP,
    };
    bpf_fd(BPF_PROG_LOAD, &attributes)
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}
// SAFETY: integers.
unsafe impl Attributes for LinkCreate {}

/// `BPF_LINK_CREATE`: `program` runs on interface `index` while the result is open. `flags` are
/// `XDP_FLAGS_*` of `linux/if_link.h`.
pub(crate) fn attach(program: BorrowedFd<'_>, index: u32, flags: u32) -> io::Result<OwnedFd> {
    let attributes = LinkCreate {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_ifindex: index,
        attach_type: BPF_XDP,
        flags,
    };
    bpf_fd(BPF_LINK_CREATE, &attributes)
}
