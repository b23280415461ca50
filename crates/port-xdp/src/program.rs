//! The XDP program: each frame goes to the socket of its receive queue.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::sys::{self, Instruction};

/// The place where an interface's frames meet the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// The program runs in the interface's driver.
    Native,
    /// Behind the interface's driver, with any driver (`XDP_FLAGS_SKB_MODE`): slower.
    Generic,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

impl XdpMode {
    /// `XDP_FLAGS_*` of `linux/if_link.h`.
    fn flags(self) -> u32 {
        match self {
            Self::Native => 1 << 2,
            Self::Generic => 1 << 1,
        }
    }
}

/// The program with its sockets, not attached.
pub(crate) struct Program {
    program: OwnedFd,
    sockets: OwnedFd,
}

// Of `linux/bpf.h` and `linux/bpf_common.h`.
const LDX_W: u8 = 0x61; // BPF_LDX | BPF_MEM | BPF_W
const LD_IMM64: u8 = 0x18; // BPF_LD | BPF_IMM | BPF_DW
const MOV_IMM: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
const CALL: u8 = 0x85; // BPF_JMP | BPF_CALL
const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT
const PSEUDO_MAP_FD: u8 = 1;
const FN_REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;
/// Offset of `rx_queue_index` in `struct xdp_md`.
const RX_QUEUE_INDEX: i16 = 16;

/// `return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS)`: a queue without a socket keeps
/// its frames.
fn instructions(sockets: i32) -> [Instruction; 6] {
    let instruction = |code, (destination, source): (u8, u8), offset, immediate| Instruction {
        code,
        registers: source << 4 | destination,
        offset,
        immediate,
    };
    [
        instruction(LDX_W, (2, 1), RX_QUEUE_INDEX, 0),
        instruction(LD_IMM64, (1, PSEUDO_MAP_FD), 0, sockets),
        instruction(0, (0, 0), 0, 0), // the upper half of the immediate value
        instruction(MOV_IMM, (3, 0), 0, XDP_PASS),
        instruction(CALL, (0, 0), 0, FN_REDIRECT_MAP),
        instruction(EXIT, (0, 0), 0, 0),
    ]
}

impl Program {
    /// Loads the program, with room for `queues` sockets, for frames in one piece or in `several`.
    ///
    /// # Errors
    /// `EPERM`: it takes `CAP_BPF` and `CAP_NET_ADMIN`. `EINVAL`: this kernel knows no frames in several pieces.
    pub(crate) fn load(queues: u32, several: bool) -> io::Result<Self> {
        let sockets = sys::create_socket_map(queues)?;
        let instructions = instructions(sockets.as_raw_fd());
        let flags = if several { sys::BPF_F_XDP_HAS_FRAGS } else { 0 };
        let program = sys::load_program(&instructions, c"Apache-2.0 OR MIT", flags)?;
        Ok(Self { program, sockets })
    }

    /// Attaches the program to interface `index`, as long as the result is open: in the driver if the driver takes a
    /// program at the interface's MTU; else behind it.
    ///
    /// # Errors
    /// `EBUSY`, `EEXIST`: there is a program already.
    pub(crate) fn attach(&self, index: u32) -> io::Result<(OwnedFd, XdpMode)> {
        let attach = |mode: XdpMode| sys::attach(self.program.as_fd(), index, mode.flags());
        match attach(XdpMode::Native) {
            Err(error) if !is_final(&error) => {}
            result => return Ok((result?, XdpMode::Native)),
        }
        Ok((attach(XdpMode::Generic)?, XdpMode::Generic))
    }

    /// Gives the frames of `queue` to `socket`, which must be bound to it.
    ///
    /// # Errors
    /// The socket has no rings or no memory.
    pub(crate) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        sys::set_socket(self.sockets.as_fd(), queue, socket)
    }
}

/// True if another mode would fail in the same way.
fn is_final(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::BUSY | Errno::EXIST | Errno::PERM | Errno::ACCESS | Errno::NODEV)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_one_that_a_compiler_makes() {
        let code: Vec<_> = instructions(0x1234)
            .iter()
            .map(|it| (it.code, it.registers, it.offset, it.immediate))
            .collect();
        let r2_from_context = (0x61, 0x12, 16, 0);
        let r1_is_the_map = (0x18, 0x11, 0, 0x1234);
        assert_eq!(
            code,
            [
                r2_from_context,
                r1_is_the_map,
                (0, 0, 0, 0),
                (0xb7, 3, 0, 2),
                (0x85, 0, 0, 51),
                (0x95, 0, 0, 0)
            ]
        );
    }
}
