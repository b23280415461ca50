//! Who answers the guests' interfaces: the kernel's back end and a bridge, or weir.

use weir_bed::error::Result;

use super::{
    bed::{Bed, Daemon, PATIENCE, weir_command},
    images::WEIR_CONFIG,
};

/// A back end that runs in dom0.
#[derive(Debug)]
pub enum BackEnd {
    /// `xen-netback`, its interfaces on a bridge.
    Netback,
    /// `weir run`.
    Weir(Daemon),
}

impl BackEnd {
    /// Loads the peer.
    pub fn netback(bed: &mut Bed) -> Result<Self> {
        bed.run(
            "for module in /modules/netback/*.ko; do insmod $module 2>/dev/null; done; \
             grep -q ^xen_netback /proc/modules && \
             { [ -e /sys/class/net/br0 ] || ip link add br0 type bridge; } && ip link set br0 up",
            PATIENCE,
        )?;
        Ok(Self::Netback)
    }

    /// Starts weir and waits for its control socket.
    pub fn weir(bed: &mut Bed) -> Result<Self> {
        Self::weir_as(bed, &format!("/{WEIR_CONFIG}"))
    }

    /// The same with so many queues for each interface that asks for them: a guest here, of one processor, does
    /// not.
    pub fn weir_with_queues(bed: &mut Bed, queues: usize) -> Result<Self> {
        const CONFIG: &str = "/run/weir-queues.toml";
        let config = format!("sed 's/^\\[xen\\]$/&\\nqueues = {queues}/' /{WEIR_CONFIG} >{CONFIG}");
        bed.run(&config, PATIENCE)?;
        Self::weir_as(bed, CONFIG)
    }

    fn weir_as(bed: &mut Bed, config: &str) -> Result<Self> {
        let weir = bed.spawn("weir", &format!("weir run {config}"))?;
        let answers = format!("{} >/dev/null 2>&1", weir_command("stats"));
        bed.until(&answers, "cat /run/weir.log")?;
        Ok(Self::Weir(weir))
    }

    /// Ends it in good order, once no guest has an interface.
    pub fn stop(self, bed: &mut Bed) -> Result<()> {
        match self {
            Self::Netback => bed.run("rmmod xen_netback", PATIENCE).map(drop),
            Self::Weir(weir) => bed.end(&weir, "TERM"),
        }
    }

    /// SIGKILL to weir, and a new one in its place; `between` looks at what is left meanwhile.
    pub fn crash_and_restart(
        self,
        bed: &mut Bed,
        between: impl FnOnce(&mut Bed) -> Result<()>,
    ) -> Result<Self> {
        if let Self::Weir(weir) = &self {
            bed.end(weir, "KILL")?;
        }
        between(bed)?;
        Self::weir(bed)
    }
}
