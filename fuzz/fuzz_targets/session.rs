//! The whole session of a hostile front end with weir as it runs: messages with several kinds of descriptors, writes
//! to memory and rings, kicks, and a truncated file, while two neighbours exchange frames.
//!
//! The input is a script: a byte for each step, and the data of the step. For any script, all descriptors, threads
//! and mappings of the session no longer exist at its end, and the neighbours are served.
#![cfg_attr(fuzzing, no_main)]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};
use weir_engine::Engine;
use weir_engine::guest::{CallPolicy, GuestDevice, GuestPort};
use weir_fabric::PortConfig;
use weir_guestmem::total_mapped;
use weir_policy::moderation::Kind;
use weir_port_vhost::{Endpoint, Manager, VhostOptions, VhostPort};
use weir_port_xen::testing::bench::eventually;
use weir_vhost_user::FrontEnd;
use weir_vif::{Options, QueuePair, Vif};
use weir_wire::{Mac, Offload};

const MEMORY: u64 = 1 << 20;
/// User address of the memory; the guest's address is the offset.
const USER: u64 = 0x7f00_0000_0000;
const STEPS_MAX: usize = 256;

struct Bench {
    engine: Arc<Engine>,
    manager: Manager,
    /// The neighbours' devices, whose sessions live as long as the bench.
    _vifs: [Vif; 2],
    pairs: [QueuePair; 2],
    offered: u64,
    number: u64,
}

static BENCH: LazyLock<Mutex<Bench>> = LazyLock::new(|| Mutex::new(Bench::new()));

fn mac(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, number]
}

fn add_port(engine: &Engine, manager: &Manager) -> (Arc<VhostPort>, UnixStream) {
    let calls = CallPolicy::within(Kind::Immediate, 250_000);
    let device = GuestDevice { access_platform: true, ..GuestDevice::default() };
    let options = VhostOptions { name: "fuzz".into(), queue_pairs: 2, calls, device };
    let make = |id, counters| Arc::new(VhostPort::new(id, counters, &options));
    let (_, port) = engine.add_port(PortConfig::vif(), make).expect("room for a port");
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    manager.add(Arc::clone(&port), Endpoint::Connected(ours)).expect("the manager runs");
    (port, theirs)
}

impl Bench {
    fn new() -> Self {
        let engine = Engine::start(1).expect("a worker");
        let manager = Manager::start(Arc::clone(&engine)).expect("a manager");
        let mut vifs = [2, 3].map(|number| {
            let (_, stream) = add_port(&engine, &manager);
            Vif::over(stream, &Options::new(Mac(mac(number)))).expect("a neighbour's session")
        });
        let pairs = vifs.each_mut().map(|vif| vif.queue_pairs().remove(0));
        let (port, stream) = add_port(&engine, &manager);
        let offered = FrontEnd::new(stream).get_features().expect("what is offered");
        manager.remove(port.id()).expect("it ends");
        engine.remove_port(port.id());
        let mut bench = Self { engine, manager, _vifs: vifs, pairs, offered, number: 0 };
        // This first session makes the threads and descriptors that the process makes once: it sets up a ring, and
        // calls by a pipe.
        session(&mut bench, &[0, 0, 14, 5, 0, 2]);
        bench
    }

    /// Each neighbour sends a frame to the other.
    fn neighbours_are_served(&mut self) {
        for (from, to) in [(0_usize, 1_usize), (1, 0)] {
            self.number += 1;
            let payload = self.number.to_be_bytes();
            let address = |index: usize| mac(2 + index as u8);
            let frame = [&address(to)[..], &address(from), &[0x88, 0xb5], &payload].concat();
            let mut sent = None;
            let mut got = Vec::new();
            eventually("a neighbour's frame arrives", || {
                // The attacker's flood may have filled the ring: the frame is sent again then.
                if sent.is_none_or(|at: Instant| at.elapsed() > Duration::from_millis(200)) {
                    let _ = self.pairs[from].send(&frame, &Offload::NONE);
                    self.pairs[from].flush();
                    sent = Some(Instant::now());
                }
                while self.pairs[to].recv_into(&mut got).is_some() {
                    if got == frame {
                        return true;
                    }
                }
                false
            });
        }
    }
}

/// The resources that a session could leak: descriptors, threads, mapped regions.
fn held() -> (usize, usize, usize) {
    let entries = |path| std::fs::read_dir(path).expect("/proc").count();
    (entries("/proc/self/fd"), entries("/proc/self/task"), total_mapped().regions)
}

/// The rest of the input; zeros after its end.
struct Script<'i>(&'i [u8]);

impl<'i> Script<'i> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            if let Some((first, rest)) = self.0.split_first() {
                (*byte, self.0) = (*first, rest);
            }
        }
        bytes
    }

    fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    fn slice(&mut self, len: usize) -> &'i [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// The front end.
struct Attacker {
    stream: UnixStream,
    memory: File,
    fds: Vec<OwnedFd>,
    kicks: Vec<OwnedFd>,
    offered: u64,
}

impl Attacker {
    fn new(stream: UnixStream, offered: u64) -> Self {
        stream.set_nonblocking(true).expect("a socket that does not block");
        let memory = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&memory, MEMORY).expect("ftruncate");
        let memory = File::from(memory);
        let event =
            || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let (socket, _) = UnixStream::pair().expect("a socket pair");
        let null = File::options().read(true).write(true).open("/dev/null").expect("/dev/null");
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll set");
        let fds = vec![
            memory.try_clone().expect("a descriptor").into(),
            event(),
            writer,
            socket.into(),
            null.into(),
            set,
            reader,
        ];
        Self { stream, memory, fds, kicks: (0..4).map(|_| event()).collect(), offered }
    }

    /// False once the socket accepts no more data.
    fn send_raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds[..fds.len().min(16)]));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let io = [std::io::IoSlice::new(bytes)];
        sendmsg(&self.stream, &io, &mut control, flags).is_ok()
    }

    fn send(&self, request: u8, flags: u8, body: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        // The version is 1 unless the script changes it.
        let header = [u32::from(request), u32::from(flags ^ 1), body.len() as u32];
        let mut message: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        message.extend(body);
        self.send_raw(&message, fds)
    }

    fn number(&self, request: u8, number: u64, fd: Option<BorrowedFd<'_>>) -> bool {
        self.send(request, 0, &number.to_le_bytes(), fd.as_slice())
    }

    fn vring(&self, request: u8, index: u8, number: u32) -> bool {
        self.send(request, 0, &[u32::from(index).to_le_bytes(), number.to_le_bytes()].concat(), &[])
    }

    fn chosen(&self, kinds: u16, count: u8) -> Vec<BorrowedFd<'_>> {
        let fd = |nth: u8| self.fds[usize::from(kinds >> (3 * nth) & 7) % self.fds.len()].as_fd();
        (0..count % 5).map(fd).collect()
    }

    fn regions(&self, regions: &[[u64; 4]]) -> bool {
        let mut body = (regions.len() as u64).to_le_bytes().to_vec();
        body.extend(regions.iter().flatten().flat_map(|word| word.to_le_bytes()));
        let fds = vec![self.memory.as_fd(); regions.len()];
        self.send(5, 0, &body, &fds)
    }

    fn addresses(&self, index: u8, areas: [u64; 3]) -> bool {
        let [descriptor, available, used] = areas;
        let words = [index.into(), descriptor, used, available, 0];
        let body: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        self.send(9, 0, &body, &[])
    }

    /// Sends all messages of an honest front end before the first kick.
    fn set_up(&self, script: &mut Script<'_>) {
        let how = script.byte();
        // The offered features without those that the script leaves out: packed, in order, EVENT_IDX, indirect,
        // mergeable buffers.
        let without = [1 << 34, 1 << 35, 1 << 29, 1 << 28, 1 << 15];
        let left_out = (0..5).filter(|bit| how >> bit & 1 == 0).map(|bit| without[bit]);
        self.number(2, left_out.fold(self.offered, |features, bit| features & !bit), None);
        self.number(16, 1 | 1 << 3 | 1 << 15, None);
        self.regions(&[[0, MEMORY, USER, 0]]);
        let size = if how & 0x80 != 0 { script.byte().max(1).into() } else { 16 };
        for index in 0..2 {
            self.vring(8, index, size);
            let base = if how & 1 != 0 { 0x8000_8000 } else { 0 };
            self.vring(10, index, base);
            let at = USER + u64::from(index) * 0x4000;
            self.addresses(index, [at, at + 0x1000, at + 0x2000]);
            self.number(13, index.into(), Some(self.fds[1].as_fd()));
            self.number(12, index.into(), Some(self.kicks[usize::from(index)].as_fd()));
            self.vring(18, index, 1);
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let _ = self.memory.write_all_at(bytes, offset % MEMORY);
    }

    /// Makes a chain available in a split ring, and writes the frame behind the header in its buffer.
    fn offer(&self, script: &mut Script<'_>) {
        let [ring, place, idx, flags, next] = script.bytes();
        let (len, at) = (script.short(), script.short());
        let base = u64::from(ring & 3) * 0x4000;
        let buffer = 0x2_0000 + u64::from(at) * 8;
        let mut descriptor = buffer.to_le_bytes().to_vec();
        descriptor.extend(u32::from(len).to_le_bytes());
        descriptor.extend(u16::from(flags & 7).to_le_bytes());
        descriptor.extend(u16::from(next).to_le_bytes());
        let place = u64::from(place);
        self.write(base + 16 * place, &descriptor);
        self.write(base + 0x1004 + 2 * (place & 15), &(place as u16).to_le_bytes());
        self.write(base + 0x1002, &u16::from(idx).to_le_bytes());
    }

    /// Makes one slot available in a packed ring, and writes its buffer.
    fn offer_packed(&self, script: &mut Script<'_>) {
        let [ring, place, flags, marks] = script.bytes();
        let (len, at) = (script.short(), script.short());
        let mut descriptor = (0x2_0000 + u64::from(at) * 8).to_le_bytes().to_vec();
        descriptor.extend(u32::from(len).to_le_bytes());
        descriptor.extend(u16::from(place).to_le_bytes());
        let marks = u16::from(marks & 1) << 7 | u16::from(marks >> 1 & 1) << 15;
        descriptor.extend((u16::from(flags & 7) | marks).to_le_bytes());
        self.write(u64::from(ring & 3) * 0x4000 + 16 * u64::from(place), &descriptor);
    }

    /// Waits for the answer to a request, and reads all data.
    fn listen(&mut self) {
        self.send(17, 0, &[], &[]);
        let mut read = [0; 4096];
        for _ in 0..20 {
            if self.stream.read(&mut read).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0 => self.set_up(script),
            1 => {
                let [request, flags, len, fds] = script.bytes();
                let (kinds, body) = (script.short(), script.slice(len.into()));
                let fds = self.chosen(kinds, fds);
                self.send(request % 48, flags & 0x0f, body, &fds);
            }
            2 => {
                let [len, fds] = script.bytes();
                let (kinds, bytes) = (script.short(), script.slice(len.into()));
                let fds = self.chosen(kinds, fds);
                self.send_raw(bytes, &fds);
            }
            3 => {
                let (at, len) = (script.short(), script.byte());
                self.write(u64::from(at) * 4, script.slice(len.into()));
            }
            4 => {
                let kick = &self.kicks[usize::from(script.byte() & 3)];
                let _ = rustix::io::write(kick, &1_u64.to_ne_bytes());
            }
            5 => self.listen(),
            6 => {
                let len = u64::from(script.byte()) * 4096;
                let _ = ftruncate(&self.memory, len);
            }
            7 => self.offer(script),
            8 => self.offer_packed(script),
            9 => drop(self.vring(11, script.byte(), 0)),
            10 => {
                let [index, on] = script.bytes();
                self.vring(18, index & 7, on.into());
            }
            11 => {
                let [what, index] = script.bytes();
                let requests = [8, 10];
                self.vring(requests[usize::from(what & 1)], index & 7, script.short().into());
            }
            12 => {
                let [index, descriptor, available, used] = script.bytes();
                let page = |byte| USER + u64::from(byte) * 0x1000;
                self.addresses(index & 7, [page(descriptor), page(available), page(used)]);
            }
            13 => {
                let count = usize::from(script.byte() % 9);
                let region = |[at, pages, user, offset]: [u8; 4]| {
                    let page = |byte| u64::from(byte) * 0x1000;
                    [page(at), page(pages), USER + page(user), page(offset)]
                };
                let regions: Vec<_> = (0..count).map(|_| region(script.bytes())).collect();
                self.regions(&regions);
            }
            14 => {
                let [what, index, fd] = script.bytes();
                let fd = self.fds[usize::from(fd) % self.fds.len()].as_fd();
                let kick = self.kicks[usize::from(index & 3)].as_fd();
                let fd = if what & 4 == 0 { kick } else { fd };
                self.number(12 + what % 3, u64::from(index & 7), Some(fd));
            }
            _ => {
                let [what, at, pages] = script.bytes();
                let page = |byte| u64::from(byte) * 0x1000;
                let words = [0, page(at), page(pages), USER + page(at), page(at)];
                let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                // ADD_MEM_REG and REM_MEM_REG.
                let fd = (what & 1 == 0).then(|| self.memory.as_fd());
                self.send(37 + (what & 1), 0, &body, fd.as_slice());
            }
        };
    }
}

/// Runs one session. At its end, at most a thread that unmaps memory still holds a part of it.
fn session(bench: &mut Bench, input: &[u8]) {
    let (port, stream) = add_port(&bench.engine, &bench.manager);
    let mut attacker = Attacker::new(stream, bench.offered);
    let mut script = Script(input);
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            break;
        }
        attacker.step(&mut script);
    }
    // weir reads all messages to the end, unless the session has used more CPU time than it may.
    let _ = attacker.stream.shutdown(std::net::Shutdown::Write);
    let over = Instant::now() + Duration::from_millis(200);
    while port.info().closed + port.info().failed == 0 && Instant::now() < over {
        std::thread::yield_now();
    }
    bench.neighbours_are_served();
    bench.manager.remove(port.id()).expect("its session ends");
    bench.engine.remove_port(port.id());
}

weir_fuzz::target!(|input: &[u8]| {
    let mut bench = BENCH.lock().expect("one thread");
    let before = held();
    session(&mut bench, input);
    let mut now = held();
    eventually(&format!("all of {before:?} is given back"), || {
        now = held();
        // A neighbour that has been silent for a second gives its thread back.
        now.0 == before.0 && now.1 <= before.1 && now.2 == before.2
    });
});
