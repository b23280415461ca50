//! weir in a machine with a network card with `rx-usecs`: QEMU's e1000e with Linux's driver. The test reads the
//! setting with `ethtool`.

use std::{path::Path, time::Duration};

use weir_bed::{
    error::{Error, Result, check},
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
    let guests = Programs::beside(&lab.weir).example("guests");
    let programs = [lab.weir.as_path(), &guests, Path::new(ETHTOOL)];
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
            "killall guests 2>/dev/null; rm -f /run/web0.sock; \
             weir run {config} >/tmp/weir.log 2>&1 & echo $! >/run/weir.pid"
        ))?;
        self.run("for try in $(seq 100); do [ -S /run/web0.sock ] && break; sleep 0.2; done")?;
        self.run("echo /run/web0.sock | guests attach >/tmp/attach.log 2>&1 &").map(drop)
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
