//! A keeper of descriptors: another process holds, by name, the descriptors that outlive weir
//! (`docs/design/restarts.md#0033`).
//!
//! | file | what |
//! |---|---|
//! | `wire.rs` | packets between weir and the keeper: sd_notify's words |
//! | `serve.rs` | the keeper's loop, and its descriptors with their limits |
//! | `client.rs` | weir's side: all descriptors at the start, then each change |
#![forbid(unsafe_code)]

mod client;
mod serve;
mod wire;

pub use client::{Dial, Keeper, Taken, connect};
pub use serve::{Args, ServeError, Server, main};

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use rustix::event::{EventfdFlags, eventfd};
    use weir_limits::{KEPT_NAME_LEN_MAX, KEPT_PER_OWNER_MAX};
    use weir_testing::eventually;

    use crate::serve::{Full, Shelf, listening};
    use crate::wire::{Received, Word, is_name, receive, send};
    use crate::{Keeper, Server, Taken, connect};

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    /// Starts a keeper in a thread, which ends with the test's process.
    fn keeper(path: &Path) {
        let server = Server::listen(path).unwrap();
        std::thread::spawn(move || server.run());
    }

    fn weir(path: &Path) -> (Keeper, Taken) {
        let path = PathBuf::from(path);
        Keeper::take(Box::new(move || connect(&path))).unwrap()
    }

    /// True if both are ends of one pair.
    fn is_other_end_of(one: OwnedFd, other: &mut UnixStream) -> bool {
        let mut one = UnixStream::from(one);
        one.write_all(&[7]).unwrap();
        let mut byte = [0];
        other.read_exact(&mut byte).unwrap();
        byte == [7]
    }

    #[test]
    fn the_next_weir_is_given_what_the_last_one_had_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        keeper(&path);
        let (first, taken) = weir(&path);
        assert!(taken.is_empty() && first.is_there());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        first.store("web0/1", Arc::new(ours.into()));
        first.store("web0/2", Arc::new(event()));
        first.store("db0/1", Arc::new(event()));
        first.remove("web0/2");
        // weir ends as if it were killed: the keeper still reads its last words.
        drop(first);
        let (_second, mut taken) = weir(&path);
        assert_eq!(taken.keys().collect::<Vec<_>>(), ["db0/1", "web0/1"]);
        assert!(is_other_end_of(taken.remove("web0/1").unwrap().release(), &mut theirs));
    }

    #[test]
    fn an_end_removes_all_but_one_by_one_word_and_nothing_comes_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let mut server = Server::listen(&path).unwrap();
        let first = std::thread::scope(|scope| {
            let first = scope.spawn(|| weir(&path).0);
            // The steps: accept weir, hear its number, hear that it takes over, and give it what is kept.
            (0..4).for_each(|_| server.step());
            first.join().unwrap()
        });
        for nth in 0..40 {
            first.store(&format!("web{nth}/1"), Arc::new(event()));
            first.store(&format!("web{nth}/2"), Arc::new(event()));
        }
        first.store("SWITCH/state", Arc::new(event()));
        while server.names().len() < 81 {
            server.step();
        }
        first.end("SWITCH/state");
        for nth in 0..40 {
            first.remove(&format!("web{nth}/1"));
            first.store(&format!("web{nth}/3"), Arc::new(event()));
        }
        server.step();
        assert_eq!(server.names(), ["SWITCH/state"], "after one word");
        first.store("SWITCH/state", Arc::new(event()));
        drop(first);
        std::thread::spawn(move || server.run());
        let (_second, taken) = weir(&path);
        assert_eq!(taken.keys().collect::<Vec<_>>(), ["SWITCH/state"]);
    }

    /// A weir, and the other end of its connection: a keeper that has nothing, and says only that.
    fn weir_at_an_old_keeper(path: &Path) -> (Keeper, OwnedFd) {
        let listener = listening(path).unwrap();
        let answers = std::thread::spawn(move || {
            let one = eventually("somebody comes", || rustix::net::accept(&listener).ok());
            send(&one, &Word::Ready, None).unwrap();
            one
        });
        let (weir, _) = weir(path);
        (weir, answers.join().unwrap())
    }

    #[test]
    fn an_old_keeper_hears_of_each_name_that_an_end_removes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let (weir, keeper) = weir_at_an_old_keeper(&path);
        weir.end("SWITCH/state");
        weir.remove("web0/1");
        let words = std::iter::from_fn(|| match receive(&keeper).unwrap() {
            Received::Word(word, _) => Some(word),
            _ => None,
        });
        assert_eq!(words.last(), Some(Word::Remove("web0/1".into())));
    }

    #[test]
    fn a_keeper_that_is_found_after_an_end_is_given_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let (first, _) = weir(&path);
        first.store("web0/1", Arc::new(event()));
        first.store("SWITCH/state", Arc::new(event()));
        first.end("SWITCH/state");
        first.start().unwrap();
        keeper(&path);
        eventually("the keeper is found", || first.is_there().then_some(()));
        drop(first);
        let (_second, taken) = weir(&path);
        assert_eq!(taken.keys().collect::<Vec<_>>(), ["SWITCH/state"]);
    }

    #[test]
    fn a_name_that_is_kept_twice_is_the_last_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        keeper(&path);
        let (first, _) = weir(&path);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        first.store("web0/1", Arc::new(event()));
        first.store("web0/1", Arc::new(ours.into()));
        drop(first);
        let (_second, mut taken) = weir(&path);
        assert!(is_other_end_of(taken.remove("web0/1").unwrap().release(), &mut theirs));
    }

    #[test]
    fn a_keeper_that_comes_later_or_anew_is_filled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let (weir, taken) = weir(&path);
        assert!(taken.is_empty() && !weir.is_there());
        weir.store("web0/1", Arc::new(event()));
        weir.start().unwrap();
        // Each keeper ends with its last packet.
        for round in 0..3 {
            let mut server = Server::listen(&path).unwrap();
            let mut given = Vec::new();
            while given.len() <= round {
                server.step();
                given = server.names();
            }
            assert!(eventually("weir sees it", || weir.is_there().then_some(true)));
            let name = format!("db0/{round}");
            drop(server);
            eventually("weir sees it go", || (!weir.is_there()).then_some(()));
            weir.store(&name, Arc::new(event()));
        }
    }

    #[test]
    fn what_a_keeper_has_that_came_too_late_is_not_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let (path, hidden) = (dir.path().join("keeper.sock"), dir.path().join("hidden.sock"));
        keeper(&path);
        let (first, _) = weir(&path);
        first.store("web0/1", Arc::new(event()));
        first.store("web0/2", Arc::new(event()));
        drop(first);
        std::fs::rename(&path, &hidden).unwrap();
        let (second, taken) = weir(&path);
        assert!(taken.is_empty());
        second.store("web0/2", Arc::new(event()));
        second.start().unwrap();
        std::fs::rename(&hidden, &path).unwrap();
        eventually("the keeper is found", || second.is_there().then_some(()));
        drop(second);
        let (_third, taken) = weir(&path);
        assert_eq!(taken.keys().collect::<Vec<_>>(), ["web0/2"]);
    }

    #[test]
    fn an_owner_fills_its_own_room_and_no_other_ones() {
        let mut shelf = Shelf::new(KEPT_PER_OWNER_MAX + 10);
        for nth in 0..KEPT_PER_OWNER_MAX {
            shelf.store(format!("greedy/{nth}"), event()).unwrap();
        }
        assert_eq!(shelf.store("greedy/more".into(), event()), Err(Full::Owner));
        // Replacing a descriptor needs no more room.
        eventually("what was refused is closed", || {
            shelf.store("greedy/0".into(), event()).ok()?;
            shelf.store("modest/1".into(), event()).ok()
        });
        eventually("there is room for one more", || {
            shelf.remove("greedy/1");
            shelf.store("greedy/more".into(), event()).ok()
        });
    }

    #[test]
    fn descriptors_that_do_not_close_keep_their_owner_waiting_and_nobody_else() {
        let (_held, lingering) = lingering_socket();
        let mut shelf = Shelf::new(1 << 16);
        // A descriptor in flight in a socket is closed with the socket.
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&theirs, &Word::Ready, Some(lingering.as_fd())).unwrap();
        drop((theirs, lingering));
        shelf.store("slow/1".into(), ours.into()).unwrap();
        shelf.store("other/1".into(), event()).unwrap();
        let before = std::time::Instant::now();
        shelf.remove("slow/1");
        shelf.store("slow/1".into(), event()).unwrap();
        shelf.remove("slow/1");
        shelf.remove("other/1");
        assert!(before.elapsed() < std::time::Duration::from_secs(5));
        assert!(shelf.names().next().is_none());
    }

    /// A TCP socket with data that nobody reads; its close waits up to a minute for a reader.
    fn lingering_socket() -> (std::net::TcpStream, OwnedFd) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let minute = std::time::Duration::from_secs(60);
        rustix::net::sockopt::set_socket_linger(&stream, Some(minute)).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        (other, stream.into())
    }

    #[test]
    fn packets_that_mean_nothing_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        keeper(&path);
        let link = connect(&path).unwrap();
        let long = format!("FDSTORE=1\nFDNAME={}", "x".repeat(KEPT_NAME_LEN_MAX + 1));
        for text in ["", "x", "FDSTORE=1", "FDSTORE=1\nFDNAME=", "FDSTORE=1\nFDNAME=a:b", &long] {
            if !text.is_empty() {
                rustix::io::write(&link, text.as_bytes()).unwrap();
            }
        }
        // These words come without a descriptor.
        send(&link, &Word::Store("web0/1".into()), None).unwrap();
        send(&link, &Word::Remove("web0/2".into()), None).unwrap();
        send(&link, &Word::Take, None).unwrap();
        let answer = eventually("it answers", || match receive(&link).unwrap() {
            Received::Nothing => None,
            answer => Some(answer),
        });
        assert!(matches!(answer, Received::Word(Word::RemovesOthers, None)), "{answer:?}");
        assert!(matches!(receive(&link).unwrap(), Received::Word(Word::Ready, None)));
    }

    #[test]
    fn names_are_those_that_systemd_takes() {
        assert!(is_name("web0/12") && is_name(&"x".repeat(KEPT_NAME_LEN_MAX)));
        for bad in ["", "a:b", "a\nb", "\u{e4}", &"x".repeat(KEPT_NAME_LEN_MAX + 1)] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_keeper_replaces_no_other_one_and_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        drop(Server::listen(&path).unwrap());
        // A keeper that was killed has left its socket.
        let _serves = Server::listen(&path).unwrap();
        let second = Server::listen(&path).unwrap_err();
        assert!(second.to_string().contains("another keeper serves"), "{second}");
        let file = dir.path().join("notes");
        std::fs::write(&file, "keep me").unwrap();
        let over = Server::listen(&file).unwrap_err();
        assert!(over.to_string().contains("is not a socket"), "{over}");
    }

    #[test]
    fn the_next_weir_looks_before_the_last_one_is_gone_and_takes_after() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        keeper(&path);
        let (first, _) = weir(&path);
        first.store("web0/1", Arc::new(event()));
        let dial = path.clone();
        let seen = || {
            Keeper::look(Box::new({
                let dial = dial.clone();
                move || connect(&dial)
            }))
            .unwrap()
        };
        let (next, looked) = eventually("it sees", || {
            let (next, looked) = seen();
            (looked.len() == 1).then_some((next, looked))
        });
        assert!(!next.is_there());
        // The keeper ignores the word of the next weir, and continues to serve the first one.
        next.store("db0/1", Arc::new(event()));
        drop(looked);
        first.store("web0/2", Arc::new(event()));
        let taking = std::thread::spawn(move || {
            let taken = next.take_over().unwrap();
            (next, taken)
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!taking.is_finished(), "the first one is there yet");
        assert!(first.leave());
        first.store("web0/3", Arc::new(event()));
        let (next, taken) = taking.join().unwrap();
        assert_eq!(taken.keys().collect::<Vec<_>>(), ["web0/1", "web0/2"]);
        assert!(next.is_there());
        next.store("web0/4", Arc::new(event()));
        drop(next);
        let (_last, taken) = weir(&path);
        assert!(taken.contains_key("web0/4") && !taken.contains_key("web0/3"));
    }

    #[test]
    fn a_second_weir_is_told_at_once_who_uses_the_keeper_and_gets_all_if_that_one_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        keeper(&path);
        let (first, _) = weir(&path);
        first.store("web0/1", Arc::new(event()));
        let take = || {
            let path = path.clone();
            Keeper::take(Box::new(move || connect(&path)))
        };
        let refused = take().unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy);
        let named = format!("another weir (process {}) uses this keeper", std::process::id());
        assert_eq!(refused.to_string(), named);
        // A weir of an earlier release neither says its number nor knows the answers `Busy` and `RemovesOthers`: it
        // waits until the other weir ends.
        let older = connect(&path).unwrap();
        send(&older, &Word::Take, None).unwrap();
        let next = || {
            eventually("it answers", || match receive(&older).unwrap() {
                Received::Nothing => None,
                said => Some(said),
            })
        };
        assert!(
            matches!(next(), Received::Word(Word::Busy(process), None) if process == std::process::id())
        );
        assert!(matches!(receive(&older).unwrap(), Received::Nothing));
        drop(first);
        assert!(matches!(next(), Received::Word(Word::Given(name), Some(_)) if name == "web0/1"));
        assert!(matches!(next(), Received::Word(Word::RemovesOthers, None)));
        assert!(matches!(next(), Received::Word(Word::Ready, None)));
    }

    #[test]
    fn a_weir_that_has_lost_its_keeper_waits_for_no_other_ones_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        keeper(&path);
        let (first, _) = weir(&path);
        first.store("web0/1", Arc::new(event()));
        let lost = connect(&path).unwrap();
        for word in [Word::Process(7), Word::Return, Word::Take] {
            send(&lost, &word, None).unwrap();
        }
        let next = || {
            eventually("it answers", || match receive(&lost).unwrap() {
                Received::Nothing => None,
                said => Some(said),
            })
        };
        assert!(matches!(next(), Received::Word(Word::Busy(_), None)));
        assert!(matches!(next(), Received::End), "it has no place in front of a weir that starts");
        drop(first);
        let (_second, taken) = weir(&path);
        assert_eq!(taken.keys().collect::<Vec<_>>(), ["web0/1"]);
    }

    #[test]
    fn a_keeper_that_is_there_and_does_not_answer_is_an_error_and_none_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let take = || {
            let path = path.clone();
            Keeper::take(Box::new(move || connect(&path)))
        };
        assert!(!take().unwrap().0.is_there());
        let listener = listening(&path).unwrap();
        assert_eq!(take().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        drop(listener);
        assert!(!take().unwrap().0.is_there(), "it has ended");
        // This keeper reads one word, and ends.
        std::fs::remove_file(&path).unwrap();
        let listener = listening(&path).unwrap();
        let hears = std::thread::spawn(move || {
            let one = eventually("somebody comes", || rustix::net::accept(&listener).ok());
            eventually("a word", || matches!(receive(&one), Ok(Received::Word(..))).then_some(()));
        });
        assert!(take().is_err());
        hears.join().unwrap();
    }

    #[test]
    fn a_keeper_that_reads_nothing_any_more_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let (weir, _held) = weir_at_an_old_keeper(&path);
        assert!(weir.is_there());
        let event = Arc::new(event());
        eventually("it is given up", || {
            weir.store("web0/1", Arc::clone(&event));
            (!weir.is_there()).then_some(())
        });
    }
}
