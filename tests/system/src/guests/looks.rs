//! Tools for operators: `weir capture` read by tshark, and `weir doctor` on a host with actual faults.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use weir_bed::{
    error::{Error, Result, check},
    lab::Lab,
    netns::Netns,
    packages::QEMU,
    process::{Placement, Process, run, wait_until},
    weir::Weir,
    workspace::socket_path,
};

use super::top;

const PATIENCE: Duration = Duration::from_secs(20);
/// Captured bytes of each frame.
const SNAP: &str = "42";
/// Number of frames of a capture.
const FRAMES: usize = 200;
/// The codes of directions in pcapng.
const INBOUND: &str = "1";
const OUTBOUND: &str = "2";

pub(super) fn tshark_reads_a_capture_from_a_pipe_with_directions_and_reasons(
    lab: &Lab,
) -> Result<()> {
    let weir = Weir::start(lab, &top::setup())?;
    let _traffic = top::traffic(lab, &weir)?;
    let control = socket_path(weir.dir(), "control.sock")?;
    let read = |args: &str, fields: &[&str]| {
        let fields: Vec<_> = fields.iter().map(|field| format!("-e {field}")).collect();
        let line = format!(
            "{} --control {} capture {args} -w - | tshark -r - -T fields {}",
            lab.weir.display(),
            control.display(),
            fields.join(" ")
        );
        run(&["bash", "-o", "pipefail", "-c", &line])
    };
    let fields =
        ["frame.interface_name", "frame.packet_flags_direction", "frame.cap_len", "eth.src"];
    let seen = read(&format!("vif0 vif1 --snap {SNAP} -c {FRAMES} -f udp"), &fields)?;
    check(seen.lines().count() == FRAMES, || format!("not {FRAMES} frames: {seen}"))?;
    let ways = seen.lines().map(|line| {
        let words: Vec<_> = line.split('\t').collect();
        let direction =
            words.get(1).map(|flags| flags.trim_start_matches("0x").trim_start_matches('0'));
        (words.first().copied(), direction, words.get(2).copied())
    });
    let way = |name, direction| (Some(name), Some(direction), Some(SNAP));
    let wanted = [way("vif0", OUTBOUND), way("vif1", INBOUND)];
    let ways: BTreeSet<_> = ways.collect();
    check(ways == wanted.into(), || format!("seen: {ways:?}"))?;

    weir.control(&["filter", "set", "vif1", "rx drop udp"])?;
    let reasons = read("vif1 --drops -c 20", &["frame.comment"])?;
    let is_said = |line: &str| line == "dropped: filtered_rx";
    check(reasons.lines().count() == 20 && reasons.lines().all(is_said), || reasons.clone())
}

/// A VM monitor with shared memory and no device, connected to a socket of weir by a chardev with the options `more`.
fn monitor(host: &Host, name: &str, socket: &Path, more: &str, user: &[&str]) -> Result<Process> {
    let chardev = format!("socket,id={name},path={}{more}", socket.display());
    let memory = "memory-backend-memfd,id=memory,size=1M,share=on";
    let bare = [
        QEMU,
        "-machine",
        "none,memory-backend=memory",
        "-m",
        "1M",
        "-display",
        "none",
        "-S",
        "-object",
        memory,
    ];
    let argv = [user, &bare, &["-chardev", &chardev]];
    let log = host.dir.join(format!("{name}.log"));
    Process::start_logged(&argv.concat(), &host.netns.placement(), &log)
}

/// A host whose weir has a TAP and two interfaces.
struct Host<'l> {
    weir: Option<Process>,
    lab: &'l Lab,
    dir: PathBuf,
    netns: Netns,
}

impl<'l> Host<'l> {
    fn start(lab: &'l Lab) -> Result<Self> {
        let dir = lab.workspace.run_dir("doctor")?;
        let netns = Netns::new()?;
        let [control, web, db] =
            ["control.sock", "web0.sock", "db0.sock"].map(|name| socket_path(&dir, name));
        let (control, web, db) = (control?, web?, db?);
        let config = format!(
            "[switch]\nworkers = 1\ncontrol = {control:?}\n[uplink.lan]\nkind = \"tap\"\nname = \"weir0\"\n\
             [vif.web0]\nsocket = {web:?}\n[vif.db0]\nsocket = {db:?}\n"
        );
        let file = dir.join("weir.toml");
        fs::write(&file, config).map_err(Error::io("write", &file))?;
        let weir = Some(Self::launch(lab, &dir, &netns.placement())?);
        Ok(Self { weir, lab, dir, netns })
    }

    fn kill_and_start(&mut self) -> Result<()> {
        drop(self.weir.take());
        self.weir = Some(Self::launch(self.lab, &self.dir, &self.netns.placement())?);
        Ok(())
    }

    fn launch(lab: &Lab, dir: &Path, placement: &Placement) -> Result<Process> {
        let (program, file) = (lab.weir.to_string_lossy(), dir.join("weir.toml"));
        let argv = [&program, "run", &file.to_string_lossy()];
        let process = Process::start_logged(&argv, placement, &dir.join("weir.log"))?;
        let control = dir.join("control.sock");
        wait_until("weir's control socket", PATIENCE, || {
            Ok(run(&[&program, "--control", &control.to_string_lossy(), "stats"]).is_ok())
        })?;
        Ok(process)
    }

    fn socket(&self, vif: &str) -> PathBuf {
        self.dir.join(format!("{vif}.sock"))
    }

    fn await_log(&self, words: &str) -> Result<()> {
        let log = self.dir.join("weir.log");
        wait_until(words, PATIENCE, || {
            Ok(fs::read_to_string(&log).is_ok_and(|log| log.contains(words)))
        })
    }

    /// The option of this QEMU for a monitor that connects again: its name depends on the version.
    fn reconnect(&self) -> Result<String> {
        let (program, file) = (self.lab.weir.to_string_lossy(), self.dir.join("weir.toml"));
        let argv = [&program, "qemu-args", "web0", "--config", &file.to_string_lossy()];
        let printed = run(&argv)?;
        let option = printed.split([',', ' ', '\n']).find(|option| option.starts_with("reconnect"));
        Ok(format!(",{}", option.ok_or_else(|| Error::parse("reconnect", &*printed))?))
    }

    /// The check and the subject of each fault that is found.
    fn wrong(&self) -> Result<BTreeSet<(String, String)>> {
        let (program, control) = (self.lab.weir.display(), self.dir.join("control.sock"));
        let line = format!("{program} --control {} doctor --json || [ $? = 5 ]", control.display());
        let said = self.netns.exec(&["sh", "-c", &line])?;
        let report: serde_json::Value = serde_json::from_str(&said)
            .map_err(|_| Error::parse("what weir doctor found", said.as_str()))?;
        let text = |it: &serde_json::Value| it.as_str().unwrap_or_default().to_owned();
        let findings = report["findings"].as_array().into_iter().flatten();
        let wrong = findings.filter(|it| it["wrong"] == true);
        Ok(wrong.map(|it| (text(&it["check"]), text(&it["subject"]))).collect())
    }

    /// Findings about this host, without those about the machine that the test runs on.
    fn own(&self) -> Result<BTreeSet<(String, String)>> {
        Ok(self.wrong()?.into_iter().filter(|(_, subject)| subject != "host").collect())
    }

    /// Waits for exactly these findings: a front end may try once more, and weir notices it later.
    fn becomes(&self, expected: &[(&str, &str)]) -> Result<()> {
        let expected = expected.iter().map(|(check, subject)| ((*check).into(), (*subject).into()));
        let expected: BTreeSet<(String, String)> = expected.collect();
        let mut own = BTreeSet::new();
        let met = wait_until("findings", PATIENCE, || {
            own = self.own()?;
            Ok(own == expected)
        });
        check(met.is_ok(), || format!("weir doctor finds {own:?}, and wrong is {expected:?}"))
    }
}

pub(super) fn doctor_finds_faults_of_a_real_host_and_nothing_in_health(lab: &Lab) -> Result<()> {
    let mut host = Host::start(lab)?;
    let healthy = host.own()?;
    check(healthy.is_empty(), || format!("weir doctor finds {healthy:?} in health"))?;
    host.netns.ip(&["link", "set", "weir0", "down"])?;
    host.becomes(&[("uplink-down", "lan")])?;
    host.netns.ip(&["link", "set", "weir0", "up"])?;

    let (web, db) = (host.socket("web0"), host.socket("db0"));
    let again = &host.reconnect()?;
    // A monitor of the user nobody, who may not open the socket; and a monitor with another path.
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let closed = monitor(&host, "closed", &web, again, &nobody)?;
    let elsewhere = Path::new("/nowhere/db0.sock");
    let lost = monitor(&host, "lost", elsewhere, again, &[])?;
    host.becomes(&[("waiting-socket-mode", "web0"), ("waiting-other-path", "db0")])?;
    drop((closed, lost));

    // Two monitors for one interface, neither with a driver.
    let _first = monitor(&host, "first", &web, again, &[])?;
    host.await_log("front end connected")?;
    let second = monitor(&host, "second", &web, again, &[])?;
    host.await_log("refused a second front end")?;
    host.becomes(&[("second-vm", "web0"), ("driver-absent", "web0")])?;
    drop(second);
    host.becomes(&[("driver-absent", "web0")])?;

    // A monitor that does not reconnect after weir is killed, and whose socket is then removed.
    let _gives_up = monitor(&host, "gives-up", &db, "", &[])?;
    host.becomes(&[("driver-absent", "db0"), ("driver-absent", "web0")])?;
    host.kill_and_start()?;
    host.becomes(&[("waiting-monitor", "db0"), ("driver-absent", "web0")])?;
    fs::remove_file(&db).map_err(Error::io("remove", &db))?;
    host.becomes(&[
        ("waiting-monitor", "db0"),
        ("waiting-socket-missing", "db0"),
        ("driver-absent", "web0"),
    ])?;
    Ok(())
}
