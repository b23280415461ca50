//! A weir with few descriptors: front ends cannot take the last ones, which the administrator needs to repair it.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use tempfile::TempDir;
use weir_limits::VHOST_USER_FDS_MAX;
use weir_testing::eventually;
use weir_vhost_user::{FrontEnd, Header, Request};
use weir_vif::{Options, Vif};
use weir_wire::Mac;

const LIMIT: u32 = 256;
/// A quarter of the limit is in reserve.
const GUESTS_MAX: usize = 192;
const VIFS: usize = 60;

/// The kernel counts descriptors in flight for all processes of a user together.
static ALONE: Mutex<()> = Mutex::new(());

/// A weir with [`LIMIT`] descriptors and [`VIFS`] interfaces. Dropping the value kills it.
struct Weir {
    process: Child,
    dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

fn config(dir: &Path, vifs: usize) -> String {
    let control = dir.join("control.sock");
    let vifs = (0..vifs).map(|nth| format!("[vif.v{nth}]\n"));
    format!("[switch]\nworkers = 1\ncontrol = {control:?}\n{}", vifs.collect::<String>())
}

/// A command under [`LIMIT`].
fn limited(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {LIMIT}; exec \"$0\" \"$@\"");
    command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_weir")).args(args);
    command
}

impl Weir {
    fn start() -> Self {
        Self::start_with(VIFS)
    }

    fn start_with(vifs: usize) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("weir.toml");
        fs::write(&file, config(dir.path(), vifs)).unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let process = limited(&["run", file.to_str().unwrap()]).stderr(log).spawn().unwrap();
        let weir = Self { process, dir, _alone: alone };
        // The socket listens before weir has it: the helper may still have to hand it over.
        eventually("weir answers", || weir.command(&["stats"]).status.success().then_some(()));
        weir
    }

    fn front_end(&self, nth: usize) -> UnixStream {
        UnixStream::connect(self.socket(nth)).unwrap()
    }

    fn socket(&self, nth: usize) -> std::path::PathBuf {
        self.dir.path().join(format!("v{nth}.sock"))
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn command(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--control").arg(self.dir.path().join("control.sock")).args(args);
        command.stdout(Stdio::piped()).output().unwrap()
    }

    fn does(&self, args: &[&str]) {
        let output = self.command(args);
        assert!(output.status.success(), "{args:?}: {}\n{}", text(&output.stderr), self.log());
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A call and an error event for each of two rings.
const EVENTS_MAX: usize = 4;

/// A front end that makes weir hold this many of its descriptors.
fn front_end_with(stream: UnixStream, events: usize) -> FrontEnd {
    let mut front = FrontEnd::new(stream);
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    let requests = [Request::SetVringCall, Request::SetVringErr];
    let all = requests.into_iter().flat_map(|request| [(request, 0_u64), (request, 1)]);
    for (request, ring) in all.take(events) {
        let header = Header::new(request, 0, 8).unwrap();
        let message = [&header.encode()[..], &ring.to_ne_bytes()].concat();
        // A front end that was refused in between has disconnected.
        let _ = front.raw_send(&message, &[event.as_fd()]);
    }
    front
}

/// Connects front ends that take every descriptor they can get, down to the last one of the process.
fn fill(weir: &Weir, vifs: std::ops::Range<usize>) -> Vec<FrontEnd> {
    let (mut fronts, mut refused) = (Vec::new(), 0);
    for nth in vifs {
        let before = weir.descriptors();
        // A front end takes its connection and the event that ends it.
        let own = 2;
        let wanted = (LIMIT as usize).saturating_sub(before + own).min(EVENTS_MAX);
        fronts.push(front_end_with(weir.front_end(nth), wanted));
        let came_in = || weir.descriptors() >= before + own + wanted;
        // There is no event for a front end that is not accepted, because it waits.
        let looks = (0..200).find(|_| {
            thread::sleep(Duration::from_millis(1));
            came_in()
        });
        refused += usize::from(looks.is_none());
        if refused == 3 {
            break;
        }
    }
    fronts
}

#[test]
fn weir_answers_while_front_ends_take_all_descriptors_that_they_may() {
    let weir = Weir::start();
    for round in 0..2 {
        let fronts = fill(&weir, 1..VIFS - round);
        let open = weir.descriptors();
        assert!(
            open + 2 * VHOST_USER_FDS_MAX >= GUESTS_MAX,
            "{open} are not all they may have\n{}",
            weir.log()
        );
        for _ in 0..5 {
            weir.does(&["stats"]);
        }
        weir.does(&["vif", "del", &format!("v{}", VIFS - 1 - round)]);
        drop(fronts);
    }
    // A front end that waited in a socket's queue is served once there is room.
    let guest = || Vif::connect(weir.socket(0), &Options::new(Mac([2, 0, 0, 0, 0, 1]))).ok();
    eventually("a guest comes in", guest);
}

/// The largest number of interfaces for which `weir check` does not complain about the limit.
fn carried() -> usize {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir.toml");
    let is_noted = |vifs: &usize| {
        fs::write(&file, config(dir.path(), *vifs)).unwrap();
        let checked = limited(&["check", file.to_str().unwrap()]).output().unwrap();
        assert!(checked.status.success(), "{}", text(&checked.stderr));
        text(&checked.stdout).contains("descriptors")
    };
    (1..VIFS).find(is_noted).expect("60 interfaces are too many") - 1
}

/// A front end that uses up all other descriptors, and then sends half a message with the most descriptors that a
/// message can have.
fn front_end_with_half_a_message(stream: UnixStream) -> FrontEnd {
    let mut front = front_end_with(stream, EVENTS_MAX);
    let null = fs::File::open("/dev/null").unwrap();
    let header = Header::new(Request::SetMemTable, 0, 264).unwrap().encode();
    let _ = front.raw_send(&header, &[null.as_fd(); VHOST_USER_FDS_MAX]);
    front
}

#[test]
fn the_last_front_end_gets_in_whatever_those_of_all_other_interfaces_hold() {
    let vifs = carried();
    assert!(vifs > 2, "{vifs}");
    let weir = Weir::start_with(vifs);
    let before = weir.descriptors();
    let mut held = Vec::new();
    for nth in 1..vifs {
        held.push((front_end_with_half_a_message(weir.front_end(nth)), weir.front_end(nth)));
    }
    // weir waits for the rest of the message. The front end of the last interface connects meanwhile.
    let each = 2 + EVENTS_MAX + VHOST_USER_FDS_MAX;
    let all = before + (vifs - 1) * each;
    eventually("weir holds all of that", || (weir.descriptors() >= all).then_some(()));
    let last = Vif::connect(weir.socket(0), &Options::new(Mac([2, 0, 0, 0, 0, 1])));
    assert!(last.is_ok(), "{:?}\n{}", last.err(), weir.log());
    let open = weir.descriptors();
    assert!(
        open >= all.min(GUESTS_MAX - each),
        "{open} are open, not {all}: the others had hung up"
    );
}

#[test]
fn check_and_run_say_at_the_start_that_descriptors_are_few() {
    let weir = Weir::start();
    let note = "a limit of 256 descriptors carries 60 interfaces, and guests of about";
    assert!(weir.log().contains(note), "{}", weir.log());
    let file = weir.dir.path().join("weir.toml");
    let checked = limited(&["check", file.to_str().unwrap()]).output().unwrap();
    let said = text(&checked.stdout);
    assert!(said.contains(note) && said.contains("LimitNOFILE="), "{said}");
    fs::write(&file, config(weir.dir.path(), 4)).unwrap();
    let checked = limited(&["check", file.to_str().unwrap()]).output().unwrap();
    assert!(!text(&checked.stdout).contains("descriptors"), "{}", text(&checked.stdout));
}

#[test]
fn an_interface_for_which_no_descriptor_is_left_is_refused_with_what_mends_it() {
    let weir = Weir::start();
    let refused = (0..LIMIT).find_map(|nth| {
        let added = weir.command(&["vif", "add", &format!("more{nth}")]);
        (!added.status.success()).then(|| text(&added.stderr))
    });
    let refused = refused.expect("256 descriptors are enough for 316 interfaces");
    assert!(refused.contains("LimitNOFILE="), "{refused}\n{}", weir.log());
    weir.does(&["stats"]);
    weir.does(&["vif", "del", "more0"]);
    weir.does(&["vif", "add", "again"]);
}

#[test]
fn descriptors_that_are_on_their_way_elsewhere_end_no_helper() {
    let weir = Weir::start();
    let (sender, unread) = UnixStream::pair().unwrap();
    let mut sender = FrontEnd::new(sender);
    let null = fs::File::open("/dev/null").unwrap();
    for _ in 0..=LIMIT as usize / VHOST_USER_FDS_MAX {
        sender.raw_send(&[0], &[null.as_fd(); VHOST_USER_FDS_MAX]).unwrap();
    }
    let refused = weir.command(&["vif", "add", "new"]);
    assert!(text(&refused.stderr).contains("on their way"), "{}", text(&refused.stderr));
    drop((sender, unread));
    // The kernel releases the descriptors with a delay.
    let added = || weir.command(&["vif", "add", "new"]).status.success().then_some(());
    eventually("the interface can be added", added);
    UnixStream::connect(weir.dir.path().join("new.sock")).unwrap();
}
