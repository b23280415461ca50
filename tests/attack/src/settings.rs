//! An administrator's settings, and an attacker who waits for a moment without them, at a separate weir that is
//! upgraded and killed.

use std::{
    fs::File,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    attack,
    attack::{Attack, Field},
    control::{ask, request},
    front::{
        Strike,
        ear::Ear,
        frame::{BROADCAST, End, Header, SYN, frame, segment},
        guest::Guest,
        harm,
    },
    measure::{
        attacker::OWN,
        switch::{CONTROL, keeper},
    },
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(filters_across_an_upgrade, "sets a filter, upgrades weir, and looks for the filter"),
    attack!(filters_across_a_sigkill, "the same with a keeper, and a weir that is killed"),
    attack!(keys_across_an_upgrade, "the same with a rate, an address, a guard and a VLAN"),
    attack!(keys_across_a_sigkill, "the same where weir is killed"),
    attack!(
        frames_between_a_sigkill_and_the_rules,
        "floods a guest whose groups are set by command while weir is killed"
    ),
    attack!(frames_between_an_upgrade_and_the_rules, "the same while weir is upgraded"),
    attack!(
        frames_between_a_reload_and_the_rules,
        "the same while the rules of a file take their place"
    ),
];

/// A weir and its keeper.
#[derive(Debug)]
pub struct Own {
    weir: PathBuf,
    dir: PathBuf,
    /// Most descriptors of the process, if there is a limit.
    limit: Option<u64>,
    keeper: Child,
    running: Child,
    /// Another process than `running` answers.
    upgraded: bool,
}

/// Longest time until a weir answers: shorter than the wait for a first strike, so that its log is shown.
const PATIENCE: Duration = Duration::from_secs(15);
const LOG: &str = "weir.log";
const FILTER: &str = "[{\"direction\":\"tx\",\"match\":\"port 25\",\"action\":\"drop\"}]";

impl Own {
    fn start(field: &Field) -> Strike<Self> {
        Self::start_with(field, None, |_| {
            Ok("[group.closed]\n\n[vif.guarded]\n\n[vif.evil]\n".to_owned())
        })
    }

    /// Starts a weir under a limit of descriptors. `tables` gets the text of `[switch]` and returns
    /// the whole file.
    pub fn start_with(
        field: &Field,
        limit: Option<u64>,
        tables: impl FnOnce(&str) -> Strike<String>,
    ) -> Strike<Self> {
        let weir = PathBuf::from(field.weir().get_program());
        // The path of a socket must be short.
        let dir = field.dir().join(OWN);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir)?;
        let switch = format!(
            "[switch]\nworkers = 1\ncontrol = {:?}\nkeeper = {:?}\n\n",
            dir.join(CONTROL),
            dir.join(crate::measure::switch::KEEPER)
        );
        std::fs::write(dir.join("weir.toml"), format!("{switch}{}", tables(&switch)?))?;
        let keeper = match keeper(&weir, &dir) {
            Ok(keeper) => keeper,
            Err(error) => return harm(error),
        };
        let running = Self::run(&weir, &dir, limit)?;
        let mut own = Self { weir, dir, limit, keeper, running, upgraded: false };
        own.answers()?;
        Ok(own)
    }

    /// A command of weir's program under a limit.
    pub fn command(weir: &Path, limit: Option<u64>) -> Command {
        let Some(limit) = limit else { return Command::new(weir) };
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {limit}; exec \"$0\" \"$@\"")).arg(weir);
        command
    }

    /// The socket of an interface.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.sock"))
    }

    fn run(weir: &Path, dir: &Path, limit: Option<u64>) -> Strike<Child> {
        let log = File::options().create(true).append(true).open(dir.join(LOG))?;
        let mut command = Self::command(weir, limit);
        command.arg("run").arg(dir.join("weir.toml")).stdin(Stdio::null());
        Ok(command.stdout(Stdio::null()).stderr(log).spawn()?)
    }

    fn ask(&self, line: &str, body: &str) -> Strike<(u16, String)> {
        let socket = UnixStream::connect(self.dir.join(CONTROL))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        ask(&socket, &request(line, body))
    }

    fn answers(&mut self) -> Strike {
        let end = Instant::now() + PATIENCE;
        while self.ask("GET /v1/switch", "").is_err() {
            let ended = !matches!(self.running.try_wait(), Ok(None));
            if ended && !self.upgraded || Instant::now() > end {
                let log = std::fs::read_to_string(self.dir.join(LOG)).unwrap_or_default();
                return harm(format!("a weir of the attacker's own does not start:\n{log}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub fn done(&self, line: &str, body: &str) -> Strike<String> {
        match self.ask(line, body)? {
            (200, answer) => Ok(answer),
            (status, answer) => harm(format!("{line}: {status} {answer}")),
        }
    }

    /// The process that answers now. After an upgrade, another process does.
    fn pid(&self) -> Strike<Pid> {
        let socket = UnixStream::connect(self.dir.join(CONTROL))?;
        Ok(rustix::net::sockopt::socket_peercred(&socket)?.pid)
    }

    pub fn upgrade(&mut self) -> Strike {
        self.done("POST /v1/upgrade", "")?;
        self.upgraded = true;
        self.answers()
    }

    pub fn kill(&mut self) -> Strike {
        self.running.kill()?;
        self.running.wait()?;
        self.running = Self::run(&self.weir, &self.dir, self.limit)?;
        self.upgraded = false;
        self.answers()
    }
}

impl Own {
    /// Reloads the file, which has the group that was set by command, and other rules each time.
    fn reload(&mut self) -> Strike {
        let file = self.dir.join("weir.toml");
        let text = std::fs::read_to_string(&file)?;
        let (bare, one, two) = (
            "[vif.guarded]\n",
            "[vif.guarded]\ngroups = [\"closed\"]\n",
            "[group.shut]\n[vif.guarded]\ngroups = [\"closed\", \"shut\"]\n",
        );
        let from = if text.contains(one) { (one, two) } else { (bare, one) };
        std::fs::write(&file, text.replace(from.0, from.1))?;
        let mut command = Command::new(&self.weir);
        command.arg("--control").arg(self.dir.join(CONTROL)).arg("reload").arg(&file);
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { harm(format!("a reload fails: {said}")) }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Ok(pid) = self.pid() {
            let _ = kill_process(pid, Signal::KILL);
        }
        for child in [&mut self.running, &mut self.keeper] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn filters(field: &Field, after: fn(&mut Own) -> Strike) -> Strike {
    let mut own = Own::start(field)?;
    own.done("PUT /v1/ports/guarded/filter", FILTER)?;
    after(&mut own)?;
    field.struck();
    let rules = own.done("GET /v1/ports/guarded/filter", "")?;
    let lost = !rules.contains("port 25");
    field.counted("settings_lost", lost.into());
    if !lost { Ok(()) } else { harm(format!("a filter is gone: {rules}")) }
}

fn filters_across_an_upgrade(field: &Field) -> Strike {
    filters(field, Own::upgrade)
}

fn filters_across_a_sigkill(field: &Field) -> Strike {
    filters(field, Own::kill)
}

fn keys(field: &Field, after: fn(&mut Own) -> Strike) -> Strike {
    let mut own = Own::start(field)?;
    let before = own.done("GET /v1/vifs", "")?;
    for change in [
        "{\"mac\":{\"set\":\"02:00:00:00:00:77\"}}",
        "{\"vlan\":{\"access\":77}}",
        "{\"sharing\":{\"weight\":{\"set\":7}}}",
    ] {
        own.done("PATCH /v1/vifs/guarded", change)?;
    }
    let set = own.done("GET /v1/vifs", "")?;
    after(&mut own)?;
    field.struck();
    let kept = own.done("GET /v1/vifs", "")?;
    // The configuration part of the answer, without counters.
    let config = |text: &str| -> Option<serde_json::Value> {
        let all: serde_json::Value = serde_json::from_str(text).ok()?;
        let is_it = |vif: &&serde_json::Value| {
            vif.pointer("/config/name").is_some_and(|name| name == "guarded")
        };
        all.as_array()?.iter().find(is_it)?.get("config").cloned()
    };
    if config(&before) == config(&set) {
        return harm(format!("changes change nothing: {set}"));
    }
    let (set_keys, kept_keys) = (config(&set).unwrap_or_default(), config(&kept));
    let is_lost = |key: &String| kept_keys.as_ref().and_then(|it| it.get(key)) != set_keys.get(key);
    let lost = set_keys.as_object().map_or(1, |all| all.keys().filter(|key| is_lost(key)).count());
    field.counted("settings_lost", lost);
    if lost == 0 { Ok(()) } else { harm(format!("{set} became {kept}")) }
}

fn frames(field: &Field, after: fn(&mut Own) -> Strike) -> Strike {
    let mut own = Own::start(field)?;
    let [mut inside, outside] =
        ["guarded", "evil"].map(|name| Ear::attach(&own.dir.join(format!("{name}.sock"))));
    let (inside, outside) = (inside.as_mut().map_err(|_| Errno::CONNREFUSED)?, outside?);
    let [to, from] =
        [60, 62].map(|number| End { mac: Guest::mac(number), ip: [10, 66, 0, number], port: 80 });
    for (ear, end) in [(&*inside, to), (&outside, from)] {
        ear.say(&frame(BROADCAST, end.mac, 0x0806, 60))?;
    }
    own.done("PATCH /v1/vifs/guarded", "{\"groups\":{\"set\":[\"closed\"]}}")?;
    std::thread::sleep(Duration::from_millis(50));
    inside.read(|_| ());
    let wrong = segment(from, to, SYN, b"a way in");
    outside.guest.load(1, |_| (Header::default(), wrong.clone()));
    let stop = AtomicBool::new(false);
    let came = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut came = 0;
            while !stop.load(Ordering::Relaxed) {
                outside.guest.pump(1);
                outside.guest.kick(1);
                inside.read(|got| came += usize::from(got.starts_with(&wrong)));
                std::thread::sleep(Duration::from_micros(100));
            }
            came
        });
        let ended = (0..2).try_for_each(|_| after(&mut own));
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
        let came = flood.join().unwrap_or(usize::MAX);
        ended.map(|()| came)
    })?;
    field.struck();
    field.counted("failed_open_frames", came);
    // ARP passes all groups: the guests still reach each other.
    let last = frame(to.mac, from.mac, 0x0806, 60);
    outside.guest.taken(1, "the flood")?;
    inside.must_hear(&outside, &last, "after the flood nothing passes any more")?;
    if came == 0 { Ok(()) } else { harm(format!("{came} frames passed without a rule")) }
}

fn frames_between_a_sigkill_and_the_rules(field: &Field) -> Strike {
    frames(field, Own::kill)
}

fn frames_between_an_upgrade_and_the_rules(field: &Field) -> Strike {
    frames(field, Own::upgrade)
}

fn frames_between_a_reload_and_the_rules(field: &Field) -> Strike {
    frames(field, Own::reload)
}

fn keys_across_an_upgrade(field: &Field) -> Strike {
    keys(field, Own::upgrade)
}

fn keys_across_a_sigkill(field: &Field) -> Strike {
    keys(field, Own::kill)
}
