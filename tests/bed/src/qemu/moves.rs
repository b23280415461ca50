//! Live migration of a guest to another QEMU (`migrate` of the monitor protocol QMP).

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use super::{Guest, GuestSpec};
use crate::{
    error::{Error, Result, check},
    guest_image::GuestImage,
    process::wait_until,
    workspace::socket_path,
};

/// Longest time for QEMU to listen or to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time for a migration. An idle machine takes a second.
const MOVE_PATIENCE: Duration = Duration::from_secs(180);
/// Bandwidth limit of a migration (bytes a second). The value is no limit in practice.
const BANDWIDTH_MAX: u64 = 1 << 32;
/// Longest downtime of a guest (ms). Without KVM, the last pass over memory alone is slow.
const DOWNTIME_MS_MAX: u64 = 2000;

/// The result of a migration.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The guest's downtime (ms) as the source QEMU reports it.
    pub downtime_ms: u64,
    /// The time at which the guest resumed at the destination.
    pub resumed: SystemTime,
}

/// A guest that can migrate.
pub struct Mover {
    /// The guest.
    pub guest: Guest,
    /// The downtime limit (ms) that QEMU is given.
    pub downtime_ms_max: u64,
    monitor: PathBuf,
    moves: u32,
}

impl Mover {
    /// Boots a guest under `program` and waits for its shell.
    pub fn boot(program: &str, image: &GuestImage, spec: &GuestSpec, dir: &Path) -> Result<Self> {
        let (spec, monitor) = with_monitor(spec, dir, 0)?;
        let guest = Guest::boot_under(program, image, &spec, dir)?;
        Ok(Self { guest, downtime_ms_max: DOWNTIME_MS_MAX, monitor, moves: 0 })
    }

    /// Migrates to another QEMU, which is plugged in as `spec` says. If the guest's back end is
    /// weir, QEMU must refuse postcopy. Programs in the guest continue.
    pub fn move_to(
        &mut self,
        program: &str,
        image: &GuestImage,
        spec: &GuestSpec,
        dir: &Path,
    ) -> Result<Moved> {
        self.moves += 1;
        let (mut spec, monitor) = with_monitor(spec, dir, self.moves)?;
        let way = socket_path(dir, &format!("{}.{}.move", self.guest.name, self.moves))?;
        let uri = format!("unix:{}", way.display());
        spec.plug.qemu_args.extend([String::from("-incoming"), uri.clone()]);
        spec.name = format!("{}.{}", spec.name, self.moves);
        let mut destination = Guest::launch_under(program, image, &spec, dir)?;
        wait_until("QEMU to wait for a guest", PATIENCE, || {
            destination.process.check_alive()?;
            Ok(way.exists())
        })?;
        let postcopy = json!({"capabilities": [{"capability": "postcopy-ram", "state": true}]});
        let mut there = Monitor::connect(&monitor)?;
        let agreed = there.ask("migrate-set-capabilities", postcopy).is_ok();
        let outside = spec.plug.qemu_args.iter().any(|argument| argument.starts_with("vhost-user"));
        check(!agreed || !outside, || {
            String::from("QEMU takes its back end to be capable of postcopy")
        })?;
        let mut source = Monitor::connect(&self.monitor)?;
        let limits =
            json!({"max-bandwidth": BANDWIDTH_MAX, "downtime-limit": self.downtime_ms_max});
        source.ask("migrate-set-parameters", limits)?;
        source.ask("migrate", json!({ "uri": uri }))?;
        let mut told = Value::Null;
        wait_until("a guest to move", MOVE_PATIENCE, || {
            destination.process.check_alive()?;
            told = source.ask("query-migrate", json!({}))?;
            let status = told["status"].as_str().unwrap_or_default();
            check(status != "failed", || format!("the guest did not move: {told}"))?;
            Ok(status == "completed")
        })?;
        let resumed = there.resumed()?;
        self.guest.process.end_now();
        self.guest.process = destination.process;
        self.guest.dialogue = destination.dialogue;
        self.guest.console = destination.console;
        self.monitor = monitor;
        let downtime_ms = told["downtime"].as_u64();
        let downtime_ms =
            downtime_ms.ok_or_else(|| Error::parse("a downtime", told.to_string()))?;
        Ok(Moved { downtime_ms, resumed })
    }
}

/// A guest whose QEMU listens with a [`Monitor`], and its socket. `number` tells QEMUs of one guest apart.
pub fn with_monitor(spec: &GuestSpec, dir: &Path, number: u32) -> Result<(GuestSpec, PathBuf)> {
    let monitor = socket_path(dir, &format!("{}.{number}.qmp", spec.name))?;
    let mut spec = spec.clone();
    let listens = format!("unix:{},server=on,wait=off", monitor.display());
    spec.plug.qemu_args.extend([String::from("-qmp"), listens]);
    Ok((spec, monitor))
}

/// A connection to a monitor.
pub struct Monitor {
    lines: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to the monitor's socket.
    pub fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(Error::io("connect to", path))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(Error::io("set a timeout of", path))?;
        let mut monitor = Self { lines: BufReader::new(stream) };
        monitor.next()?;
        monitor.ask("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Waits until the guest runs here. Returns the time of that event.
    fn resumed(&mut self) -> Result<SystemTime> {
        loop {
            let event = self.next()?;
            let time = |part: &str| event["timestamp"][part].as_u64();
            if event["event"] == "RESUME"
                && let (Some(seconds), Some(microseconds)) = (time("seconds"), time("microseconds"))
            {
                let since = Duration::from_secs(seconds) + Duration::from_micros(microseconds);
                return Ok(SystemTime::UNIX_EPOCH + since);
            }
        }
    }

    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line);
        read.map_err(Error::io("read from", Path::new("QEMU's monitor")))?;
        serde_json::from_str(&line).map_err(|_| Error::parse("QMP", line))
    }

    /// The answer to a command; [`Error::Check`] if QEMU refuses it.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let words = json!({"execute": command, "arguments": arguments}).to_string();
        let sent = self.lines.get_mut().write_all(words.as_bytes());
        sent.map_err(Error::io("write to", Path::new("QEMU's monitor")))?;
        loop {
            let mut answer = self.next()?;
            if let Some(answer) = answer.get_mut("return") {
                return Ok(answer.take());
            }
            // Lines with neither an answer nor an error are events.
            if let Some(error) = answer.get("error") {
                return Err(Error::Check(format!("{command}: {}", error["desc"])));
            }
        }
    }
}
