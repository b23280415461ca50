//! The reasons why an interface cannot be used by AF_XDP, and the user's remedies.

use weir_port_tap::LinkError;

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
        /// The privileges that the step takes.
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
