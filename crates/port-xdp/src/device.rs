//! Opens an interface for AF_XDP: every step that needs privileges, and the XDP program, which
//! gives each frame to the socket of its receive queue.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::{fmt, io};

use rustix::io::Errno;
use weir_limits::{XDP_CHUNK_LEN_MAX, XDP_CHUNK_LEN_MIN, XDP_CHUNKS_MAX, XDP_HEADROOM_LEN};
use weir_policy::steering::Steering;
use weir_port_packet::promiscuous;
use weir_port_tap::{InterfaceName, Link, LinkError};
use weir_wire::Mac;
use weir_wire::vlan::TAG_LEN;

use crate::socket::{REGISTER_STEP, Rings, StepError, XdpSocket};
use crate::sys::{self, Instruction};

/// The reason why [`XdpInterface::open`](crate::XdpInterface::open) failed.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// The interface cannot be an uplink of any kind.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The interface does not have as many queues as weir is to serve: the frames of further queues would not reach
    /// weir.
    #[error("interface `{name}` has {has} receive queue(s), not {queues}")]
    QueuesDiffer {
        /// The interface.
        name: String,
        /// Queues asked for.
        queues: usize,
        /// Queues that the interface has in use.
        has: usize,
    },
    /// A frame of this MTU does not fit a chunk of memory.
    #[error("interface `{name}` has an MTU of {mtu}, AF_XDP takes {max}")]
    MtuTooLarge {
        /// The interface.
        name: String,
        /// The interface's MTU (bytes).
        mtu: u32,
        /// The largest (bytes).
        max: u32,
    },
    /// The kernel was built without AF_XDP.
    #[error("this kernel has no AF_XDP")]
    NoKernelSupport,
    /// A privilege is missing.
    #[error("interface `{name}`: not permitted to {step}")]
    NotPermitted {
        /// The interface.
        name: String,
        /// The step that failed.
        step: &'static str,
        /// The privileges that the step needs.
        privileges: &'static str,
    },
    /// The sockets' memory is larger than the amount that the process may lock.
    #[error("interface `{name}`: the kernel does not let weir lock the memory of its frames")]
    MemoryLimit {
        /// The interface.
        name: String,
    },
    /// Another AF_XDP socket has the queue.
    #[error("queue {queue} of interface `{name}` is in use by another AF_XDP socket")]
    QueueBusy {
        /// The interface.
        name: String,
        /// The queue.
        queue: u32,
    },
    /// The interface has an XDP program.
    #[error("interface `{name}` has an XDP program already")]
    ProgramBusy {
        /// The interface.
        name: String,
    },
}

impl XdpError {
    /// Advice to the user, if there is any.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Link(error) => error.help(),
            Self::QueuesDiffer { name, queues, has } => Some(format!(
                "write `queues = {has}`, or set the interface's: `ethtool -L {name} combined \
                 {queues}` (a veth: `rx {queues} tx {queues}`)"
            )),
            Self::MtuTooLarge { name, max, .. } => Some(format!(
                "`ip link set dev {name} mtu {max}`, or an uplink of kind `af_packet`"
            )),
            Self::NoKernelSupport => Some(
                "use a kernel with CONFIG_XDP_SOCKETS, or an uplink of kind `af_packet`".into(),
            ),
            Self::NotPermitted { privileges, .. } => Some(format!("give weir {privileges}")),
            Self::MemoryLimit { .. } => Some(
                "raise the limit (`ulimit -l`, LimitMEMLOCK= of a service), or give weir \
                 CAP_IPC_LOCK"
                    .into(),
            ),
            Self::QueueBusy { .. } => {
                Some("end the process that has it, or choose another interface".into())
            }
            Self::ProgramBusy { name } => Some(format!(
                "`ip link show dev {name}` prints it; `ip link set dev {name} xdp off` takes away \
                 one that no process holds"
            )),
        }
    }
}

/// The choice of an interface, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// The interface's name, 1 to [`weir_limits::IFNAME_LEN_MAX`] bytes.
    pub name: String,
    /// The number of the interface's receive queues, 1 to [`weir_limits::QUEUE_PAIRS_MAX`], each of which gets a
    /// socket.
    pub queues: usize,
    /// The interface's MTU (bytes); `None` leaves it unchanged.
    pub mtu: Option<u16>,
}

/// The properties of the opened interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpInfo {
    /// The interface's name.
    pub name: String,
    /// The interface's number.
    pub index: u32,
    /// The host's address on it.
    pub mac: Mac,
    /// The interface's MTU (bytes) when it was opened.
    pub mtu: u32,
    /// The place where its frames meet the program.
    pub mode: XdpMode,
    /// True if the interface's driver puts frames into weir's memory itself; else the kernel copies them.
    pub zero_copy: bool,
}

/// An interface whose frames come to weir alone, as long as the value exists.
pub struct XdpInterface {
    pub(crate) info: XdpInfo,
    pub(crate) steering: Steering,
    pub(crate) held: Held,
    pub(crate) queues: Vec<(XdpSocket, Rings)>,
}

/// The descriptors that hold the interface's state: once they are closed, however the process ends,
/// the interface is as before.
pub(crate) struct Held {
    /// The program's link, which keeps the program and its map of sockets.
    _link: OwnedFd,
    _promiscuous: OwnedFd,
}

/// An Ethernet header and two VLAN tags, which an MTU does not count.
const FRAME_OVERHEAD: u32 = 14 + 2 * TAG_LEN as u32;

impl XdpInfo {
    /// Bytes of the longest frame of the interface.
    pub(crate) fn frame_len_max(&self) -> usize {
        (self.mtu + FRAME_OVERHEAD) as usize
    }
}

impl XdpInterface {
    /// Opens the interface of that name in the calling thread's network namespace, which must exist, and brings it up.
    ///
    /// # Errors
    /// [`XdpError`]; then its frames go where they went before.
    pub fn open(options: &XdpOptions) -> Result<Self, XdpError> {
        let interface = InterfaceName::new(&options.name).map_err(LinkError::from)?;
        let steering = Steering::new(options.queues).map_err(LinkError::from)?;
        let name = || options.name.clone();
        let failed = |step| setup_failed(&options.name, step);

        let link = Link::new(interface).map_err(failed("ask for it"))?;
        let index = link.index().map_err(failed("find it"))?;
        if !link.is_ethernet().map_err(failed("read its type"))? {
            return Err(LinkError::NotEthernet { name: name() }.into());
        }
        let has = link.rx_queues().map_err(failed("read the number of its queues"))?;
        if has != options.queues {
            return Err(XdpError::QueuesDiffer { name: name(), queues: options.queues, has });
        }
        if let Some(mtu) = options.mtu {
            link.set_mtu(mtu).map_err(|source| LinkError::Mtu { name: name(), mtu, source })?;
        }
        let mtu = link.mtu().map_err(failed("read its MTU"))?;
        let too_large = |chunks| XdpError::MtuTooLarge { name: name(), mtu, max: mtu_max(chunks) };
        let chunks = Chunks::of(mtu).ok_or_else(|| too_large(XDP_CHUNKS_MAX))?;
        let without =
            |error: &io::Error| chunks.several && Errno::from_io_error(error) == Some(Errno::INVAL);

        let numbers = 0..options.queues as u32; // Steering::new takes a few only
        let open = |_| XdpSocket::open(chunks).map_err(|error| not_opened(&options.name, error));
        let queues: Vec<_> = numbers.clone().map(open).collect::<Result<_, _>>()?;
        let program = Program::load(numbers.end, chunks.several).map_err(|error| {
            // Linux before 5.18.
            if without(&error) { too_large(1) } else { failed("load an XDP program")(error) }
        })?;
        let promiscuous = promiscuous(index).map_err(failed("make it promiscuous"))?;
        link.bring_up().map_err(failed("bring it up"))?;
        // Without this setting, a tagged frame would look like one without a tag, and be in another
        // VLAN.
        link.keep_vlan_tags().map_err(failed("have it leave VLAN tags in their frames"))?;

        // The program is attached first: some drivers must know of the program before they give a
        // queue away.
        let (attached, mode) =
            program.attach(index).map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::BUSY | Errno::EXIST) => XdpError::ProgramBusy { name: name() },
                _ => failed("attach an XDP program")(error),
            })?;
        let mut zero_copy = true;
        for (queue, (socket, _)) in numbers.zip(&queues) {
            socket.bind(index, queue).map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::BUSY) => XdpError::QueueBusy { name: name(), queue },
                // Linux before 6.6.
                _ if without(&error) => too_large(1),
                _ => failed("bind a socket to one of its queues")(error),
            })?;
            program
                .set_socket(queue, socket.fd.as_fd())
                .map_err(failed("give a queue's frames to its socket"))?;
            zero_copy &= socket.is_zero_copy().map_err(failed("ask for a socket's mode"))?;
        }
        let mac = link.mac().map_err(failed("read its MAC address"))?;
        let info = XdpInfo { name: name(), index, mac, mtu, mode, zero_copy };
        let held = Held { _link: attached, _promiscuous: promiscuous };
        Ok(Self { info, steering, held, queues })
    }

    /// The properties of the interface.
    pub fn info(&self) -> &XdpInfo {
        &self.info
    }
}

/// The pieces of memory for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// The length of each (bytes).
    pub(crate) len: u32,
    /// A frame may take several.
    pub(crate) several: bool,
}

impl Chunks {
    /// The smallest chunks for frames of an interface with this MTU. A frame gets one chunk if possible.
    fn of(mtu: u32) -> Option<Self> {
        let needed = mtu.checked_add(FRAME_OVERHEAD + XDP_HEADROOM_LEN)?;
        let len = needed.checked_next_power_of_two()?.max(XDP_CHUNK_LEN_MIN);
        let several = len > XDP_CHUNK_LEN_MAX;
        let fits = !several || mtu <= mtu_max(XDP_CHUNKS_MAX);
        fits.then_some(Self { len: len.min(XDP_CHUNK_LEN_MAX), several })
    }
}

/// The largest MTU whose frames fit into this many chunks.
fn mtu_max(chunks: u32) -> u32 {
    chunks * (XDP_CHUNK_LEN_MAX - XDP_HEADROOM_LEN) - FRAME_OVERHEAD
}

/// The error for a socket that could not be opened.
fn not_opened(name: &str, (step, source): StepError) -> XdpError {
    match Errno::from_io_error(&source) {
        Some(Errno::AFNOSUPPORT) => XdpError::NoKernelSupport,
        Some(Errno::NOBUFS | Errno::NOMEM) if step == REGISTER_STEP => {
            XdpError::MemoryLimit { name: name.to_owned() }
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            XdpError::NotPermitted { name: name.to_owned(), step, privileges: "CAP_NET_RAW" }
        }
        _ => LinkError::Setup { name: name.to_owned(), step, source }.into(),
    }
}

/// The error of a step: the kernel's, or its meaning.
fn setup_failed(name: &str, step: &'static str) -> impl FnOnce(io::Error) -> XdpError + use<> {
    let name = name.to_owned();
    move |source| match Errno::from_io_error(&source) {
        Some(Errno::PERM | Errno::ACCESS) => XdpError::NotPermitted {
            name,
            step,
            privileges: "CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (before Linux 5.8, CAP_SYS_ADMIN)",
        },
        Some(Errno::NODEV | Errno::NXIO) => LinkError::NoInterface { name }.into(),
        _ => LinkError::Setup { name, step, source }.into(),
    }
}

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
    /// `EPERM`: this needs `CAP_BPF` and `CAP_NET_ADMIN`. `EINVAL`: this kernel knows no frames in
    /// several pieces.
    pub(crate) fn load(queues: u32, several: bool) -> io::Result<Self> {
        let sockets = sys::create_socket_map(queues)?;
        let instructions = instructions(sockets.as_raw_fd());
        let flags = if several { sys::BPF_F_XDP_HAS_FRAGS } else { 0 };
        let program = sys::load_program(&instructions, c"Apache-2.0 OR MIT", flags)?;
        Ok(Self { program, sockets })
    }

    /// Attaches the program to interface `index`, as long as the result is open: in the driver if
    /// the driver supports a program at the interface's MTU, otherwise behind the driver.
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
    fn chunks_hold_the_longest_frame_and_what_the_kernel_puts_before_it() {
        let one = |len| Some(Chunks { len, several: false });
        let several = Some(Chunks { len: 4096, several: true });
        assert_eq!(Chunks::of(68), one(2048));
        assert_eq!(Chunks::of(1500), one(2048));
        assert_eq!(Chunks::of(2048 - 256 - 22), one(2048));
        assert_eq!(Chunks::of(2048 - 256 - 21), one(4096));
        assert_eq!((Chunks::of(3818), mtu_max(1)), (one(4096), 3818));
        assert_eq!(Chunks::of(3819), several);
        assert_eq!((Chunks::of(15_338), mtu_max(4)), (several, 15_338));
        assert_eq!(Chunks::of(15_339), None);
        assert_eq!(Chunks::of(u32::MAX), None);
    }

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
