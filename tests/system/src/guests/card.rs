//! weir in a machine with a network card with `rx-usecs`: QEMU's e1000e with Linux's driver. The test reads the
//! setting with `ethtool`.
//!
//! weir in a machine with two last-level caches, of which Linux tells it.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use weir_bed::{
    error::{Error, Result, check},
    guest_image::GuestImage,
    lab::Lab,
    process::{Placement, wait_until},
    qemu::{Guest, GuestSpec, Plug},
    workspace::Programs,
};

const ETHTOOL: &str = "/usr/sbin/ethtool";

const COMMAND: Duration = Duration::from_secs(30);
/// Time for weir to start, a guest to connect, and the manager to run (ten times a second), all without KVM.
const PATIENCE: Duration = Duration::from_secs(60);

/// Addresses of QEMU's user network, which answers pings.
const CIDR: &str = "10.0.2.15/24";
const PEER: &str = "10.0.2.2";

/// The machine owner's setting (us).
const FOUND: u32 = 50;
/// The part of a budget of 1 ms that is available to hold frames (us).
const SHARED: u32 = 980;

/// The uplink gets a share of the budget because every guest takes part.
const CONFIG: &str = "[switch]\\ncontrol = \\\"/run/control.sock\\\"\\n\
    [vif.web0]\\nsocket = \\\"/run/web0.sock\\\"\\nlatency_budget = \\\"1ms\\\"\\nmoderation = \\\"two-layer\\\"\\n";
const UPLINK: &str = "[uplink.lan]\\nkind = \\\"af_packet\\\"\\nname = \\\"eth0\\\"\\n";

pub(super) fn network_card_gathers_and_is_always_left_as_it_was_found(lab: &Lab) -> Result<()> {
    // The examples are in the build directory of the program `weir`.
    let attach = Programs::beside(&lab.weir).example("attach");
    let programs = [lab.weir.as_path(), &attach, Path::new(ETHTOOL)];
    let image = lab.image.with_card(&lab.workspace, &programs)?;
    let qemu_args = ["-m", "512M", "-netdev", "user,id=net", "-device", "e1000e,netdev=net"];
    let spec = GuestSpec {
        name: "machine".into(),
        cidr: CIDR.into(),
        vcpus: 1,
        plug: Plug {
            qemu_args: qemu_args.map(str::to_owned).into(),
            placement: Placement::default(),
        },
    };
    let dir = lab.workspace.run_dir("card")?;
    let mut machine = Machine(Guest::boot(&image, &spec, &dir)?);
    machine.run(&format!("ethtool -C eth0 rx-usecs {FOUND}"))?;
    machine.run(&format!("printf \"{CONFIG}{UPLINK}\" >/tmp/uplink.toml"))?;
    machine.run(&format!("printf \"{CONFIG}\" >/tmp/none.toml"))?;
    // The manager runs only while there is traffic.
    machine.run(&format!("ping {PEER} >/tmp/ping.log 2>&1 &"))?;

    machine.start_weir("/tmp/uplink.toml")?;
    machine.await_rx_usecs("gathers", |usecs| usecs != FOUND)?;
    let usecs = machine.rx_usecs()?;
    check(usecs > FOUND && usecs < SHARED, || format!("of {SHARED} us the card has {usecs}"))?;
    let explained = machine.weir("explain lan")?;
    let says = format!("gathers frames for {usecs} us (rx-usecs, found: {FOUND})");
    check(explained.contains(&says), || format!("not \"{says}\" but:\n{explained}"))?;

    // A guest whose frames may not be held.
    machine.weir("vif set web0 moderation=immediate")?;
    machine.await_rx_usecs("is as it was", |usecs| usecs == FOUND)?;
    machine.weir("vif set web0 moderation=two-layer")?;
    machine.await_rx_usecs("gathers again", |usecs| usecs != FOUND)?;

    machine.run("kill -9 $(cat /run/weir.pid)")?;
    let usecs = machine.rx_usecs()?;
    check(usecs != FOUND, || "nobody was there to restore it".into())?;
    machine.start_weir("/tmp/none.toml")?;
    machine.await_rx_usecs("is as the weir that was killed found it", |usecs| usecs == FOUND)?;
    machine.run("kill $(cat /run/weir.pid)")?;

    machine.start_weir("/tmp/uplink.toml")?;
    machine.await_rx_usecs("gathers for the next weir", |usecs| usecs != FOUND)?;
    machine.run("kill $(cat /run/weir.pid)")?;
    machine.await_rx_usecs("is as it was in the end", |usecs| usecs == FOUND)
}

struct Machine(Guest);

impl Machine {
    fn run(&mut self, command: &str) -> Result<String> {
        self.0.run(command, COMMAND)
    }

    fn weir(&mut self, command: &str) -> Result<String> {
        self.run(&format!("weir --control /run/control.sock {command}"))
    }

    /// Starts weir, and a silent guest as soon as weir listens.
    fn start_weir(&mut self, config: &str) -> Result<()> {
        self.run(&format!(
            "killall attach 2>/dev/null; rm -f /run/web0.sock; \
             weir run {config} >/tmp/weir.log 2>&1 & echo $! >/run/weir.pid"
        ))?;
        self.run("for try in $(seq 100); do [ -S /run/web0.sock ] && break; sleep 0.2; done")?;
        self.run("echo /run/web0.sock | attach >/tmp/attach.log 2>&1 &").map(drop)
    }

    fn rx_usecs(&mut self) -> Result<u32> {
        let text = self.run("ethtool -c eth0")?;
        let value = text.lines().find_map(|line| line.strip_prefix("rx-usecs:"));
        let usecs = value.and_then(|value| value.trim().parse().ok());
        usecs.ok_or_else(|| Error::parse("rx-usecs", text.as_str()))
    }

    fn await_rx_usecs(&mut self, what: &str, is: impl Fn(u32) -> bool) -> Result<()> {
        let waited =
            wait_until(&format!("that the card {what}"), PATIENCE, || Ok(is(self.rx_usecs()?)));
        waited.map_err(|error| {
            let logs = self.run("cat /tmp/weir.log /tmp/attach.log; ethtool -c eth0");
            let explained = self.weir("explain lan");
            Error::Check(format!("{error}\n{logs:?}\n{explained:?}"))
        })
    }
}

/// Eight processors, four in each of two caches. QEMU's default model has no caches that Linux could see.
const CACHES: [&str; 6] =
    ["-m", "1G", "-smp", "8,sockets=2,cores=4,threads=1,maxcpus=8", "-cpu", "Nehalem,+rdrand"];

/// Guo 2009: a worker comes into the cache of its guests' virtual processors, and they come into its cache.
pub(super) fn workers_and_virtual_processors_share_one_of_two_caches(lab: &Lab) -> Result<()> {
    let paced = Programs::beside(&lab.weir).example("paced");
    let dir = lab.workspace.run_dir("caches")?;
    let (modules, initrd) = (dir.join("modules"), dir.join("initrd.img"));
    fs::create_dir_all(&modules).map_err(Error::io("make", &modules))?;
    lab.image.write_initrd(&modules, &[lab.weir.as_path(), &paced], &initrd)?;
    let image = GuestImage { initrd, ..lab.image.clone() };
    let spec = GuestSpec {
        name: "machine".into(),
        cidr: String::new(),
        vcpus: 8,
        plug: Plug { qemu_args: CACHES.map(str::to_owned).into(), placement: Placement::default() },
    };
    let mut machine = Machine(Guest::boot(&image, &spec, &dir)?);
    let caches = [0, 4].map(|cpu| machine.cache_of(cpu));
    let [Ok(first), Ok(second)] = &caches else {
        return Err(Error::Check(format!("no two caches: {caches:?}")));
    };
    check(first.len() == 4 && first.is_disjoint(second), || format!("caches {caches:?}"))?;

    // The worker stays off the processors of guests whose owner has placed them, and goes where they are.
    machine.start_placing(false)?;
    for (cache, mask, pinned) in [(second, "60", [5, 6]), (first, "06", [1, 2])] {
        machine.start_guests(mask)?;
        machine.await_places(&format!("the worker to be beside {pinned:?}"), |worker, vcpus| {
            worker.len() == 1
                && worker.is_subset(cache)
                && vcpus == &BTreeSet::from(pinned)
                && worker.is_disjoint(vcpus)
        })?;
    }
    machine.run("killall weir; while pidof weir >/dev/null; do sleep 0.1; done")?;

    // Guests that may run anywhere are placed by weir.
    machine.start_placing(true)?;
    machine.start_guests("ff")?;
    machine.await_places("virtual processors beside the worker", |worker, vcpus| {
        let cache = [first, second].into_iter().find(|cache| worker.is_subset(cache));
        let beside =
            |cache: &BTreeSet<u16>| -> BTreeSet<u16> { cache.difference(worker).copied().collect() };
        worker.len() == 1 && cache.map(beside).as_ref() == Some(vcpus)
    })
}

impl Machine {
    /// Starts a weir that places its worker, and virtual processors as well if `pins`.
    fn start_placing(&mut self, pins: bool) -> Result<()> {
        let config = format!(
            "[switch]\\ncontrol = \\\"/run/control.sock\\\"\\nplacement = \\\"static\\\"\\npin_vcpus = {pins}\\n\
             [vif.a]\\nsocket = \\\"/run/a.sock\\\"\\n[vif.b]\\nsocket = \\\"/run/b.sock\\\"\\n"
        );
        self.run(&format!("printf \"{config}\" >/tmp/place.toml; rm -f /run/*.sock"))?;
        self.run("weir run /tmp/place.toml >/tmp/weir.log 2>&1 &")?;
        self.run("for try in $(seq 100); do [ -S /run/b.sock ] && exit 0; sleep 0.2; done; exit 1")
            .map(drop)
    }

    /// Starts a program with the traffic of two guests, whose threads have the name of virtual processors and may run
    /// on those of `mask`.
    fn start_guests(&mut self, mask: &str) -> Result<()> {
        self.run(&format!(
            "while killall vcpu0 2>/dev/null; do sleep 0.1; done; cp /bin/paced /tmp/vcpu0; \
             taskset {mask} /tmp/vcpu0 /run/a.sock /run/b.sock 100 100 9999 >/tmp/paced.log 2>&1 &"
        ))
        .map(drop)
    }

    /// The processors that share the last-level cache of `cpu`.
    fn cache_of(&mut self, cpu: u16) -> Result<BTreeSet<u16>> {
        let list = self
            .run(&format!("cat /sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list"))?;
        cpu_list(&list).ok_or_else(|| Error::parse("processors", list))
    }

    /// The processors on which threads may run whose names begin with `name`.
    fn allowed(&mut self, name: &str) -> Result<BTreeSet<u16>> {
        let lists = self.run(&format!(
            "for task in /proc/[0-9]*/task/*; do case $(cat $task/comm 2>/dev/null) in \
             {name}*) grep Cpus_allowed_list $task/status;; esac; done; true"
        ))?;
        let lists = lists.lines().map(|line| line.rsplit(':').next().and_then(cpu_list));
        let all: Option<Vec<_>> = lists.collect();
        Ok(all.unwrap_or_default().into_iter().flatten().collect())
    }

    /// Waits until the worker and the virtual processors may run where `are` wants them.
    fn await_places(
        &mut self,
        what: &str,
        are: impl Fn(&BTreeSet<u16>, &BTreeSet<u16>) -> bool,
    ) -> Result<()> {
        let waited = wait_until(what, 2 * PATIENCE, || {
            Ok(are(&self.allowed("weir-worker")?, &self.allowed("vcpu")?))
        });
        waited.map_err(|error| {
            let explained = self.weir("explain placement");
            let logs = self.run("tail -n 3 /tmp/weir.log /tmp/paced.log");
            Error::Check(format!("{error}\n{explained:?}\n{logs:?}"))
        })
    }
}

/// Processors as the kernel lists them: `0-3,7`.
fn cpu_list(list: &str) -> Option<BTreeSet<u16>> {
    let mut cpus = BTreeSet::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_read_as_the_kernel_lists_them() {
        assert_eq!(cpu_list(" 0-2,5\n"), Some([0, 1, 2, 5].into()));
        assert_eq!((cpu_list(""), cpu_list("0-x")), (None, None));
    }
}
