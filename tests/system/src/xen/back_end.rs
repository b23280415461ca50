//! The back end of the guests' interfaces: the kernel's with a bridge, or weir.

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
    /// Loads the kernel's back end.
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

    /// Starts weir with `queues` queues for each interface whose front end asks for them. The guests have one CPU and
    /// do not ask.
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

    /// Ends the back end in order, once no guest has an interface.
    pub fn stop(self, bed: &mut Bed) -> Result<()> {
        match self {
            Self::Netback => bed.run("rmmod xen_netback", PATIENCE).map(drop),
            Self::Weir(weir) => bed.end(&weir, "TERM"),
        }
    }

    /// Sends SIGKILL to weir and starts another one. `between` runs in the time between.
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
