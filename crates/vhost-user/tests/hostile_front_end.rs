//! Whatever bytes and descriptors a front end sends, in whatever pieces, there is no panic, and no descriptor stays
//! open. The test is alone in its process, because it counts the process's descriptors.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use weir_vhost_user::{Connection, FrontEnd};

/// One `sendmsg` of the front end.
#[derive(Debug, Clone)]
struct Piece {
    bytes: Vec<u8>,
    fds: usize,
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A header close enough to a real one to get past the first checks, and some body.
fn almost_message() -> impl Strategy<Value = Vec<u8>> {
    let request = prop_oneof![9 => 0u32..50, 1 => any::<u32>()];
    let flags = prop_oneof![9 => Just(1u32), 2 => Just(9), 1 => any::<u32>()];
    let size = prop_oneof![
        8 => prop::sample::select(vec![0usize, 8, 12, 16, 20, 24, 40, 72, 264]),
        2 => 0usize..400,
    ];
    let claimed = prop_oneof![9 => Just(None), 1 => any::<u32>().prop_map(Some)];
    // Small numbers make counts, indices and sizes that are sometimes right.
    let byte = prop_oneof![6 => Just(0u8), 2 => 0u8..10, 1 => any::<u8>()];
    (request, flags, size, claimed)
        .prop_flat_map(move |(request, flags, size, claimed)| {
            let body = prop::collection::vec(byte.clone(), size);
            (Just(request), Just(flags), Just(claimed), body)
        })
        .prop_map(|(request, flags, claimed, body)| {
            let size = claimed.unwrap_or(body.len() as u32);
            let mut bytes = Vec::new();
            for word in [request, flags, size] {
                bytes.extend(word.to_ne_bytes());
            }
            bytes.extend(body);
            bytes
        })
}

fn piece() -> impl Strategy<Value = Vec<Piece>> {
    let bytes = prop_oneof![8 => almost_message(), 1 => prop::collection::vec(any::<u8>(), 1..60)];
    let fds = prop_oneof![4 => Just(0usize), 4 => Just(1), 2 => 2usize..=8, 1 => 9usize..=30];
    (bytes, fds, prop::option::weighted(0.3, any::<prop::sample::Index>())).prop_map(
        |(bytes, fds, cut)| match cut {
            Some(cut) if bytes.len() > 1 => {
                let (head, tail) = bytes.split_at(1 + cut.index(bytes.len() - 1));
                vec![
                    Piece { bytes: head.to_vec(), fds },
                    Piece { bytes: tail.to_vec(), fds: fds / 2 },
                ]
            }
            _ => vec![Piece { bytes, fds }],
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn hostile_bytes_neither_panic_nor_leak_descriptors(
        messages in prop::collection::vec(piece(), 1..8),
    ) {
        let before = open_descriptors();
        {
            let (front, back) = UnixStream::pair().unwrap();
            let (mut front, mut back) = (FrontEnd::new(front), Connection::new(back));
            let sent = std::fs::File::open("/dev/null").unwrap();
            let mut ended = false;
            for Piece { bytes, fds } in messages.into_iter().flatten() {
                front.raw_send(&bytes, &vec![sent.as_fd(); fds]).unwrap();
                while !ended {
                    match back.receive() {
                        Ok(Some(message)) => drop(message),
                        Ok(None) => break,
                        Err(_) => ended = true,
                    }
                }
                if ended {
                    break;
                }
            }
            // The rest are the sockets, the file that is sent, and the descriptors of an unfinished message.
            let held = open_descriptors() - before;
            let most = if ended { 3 } else { 3 + weir_limits::VHOST_USER_FDS_MAX };
            prop_assert!(held <= most, "{} descriptors open, at most {}", held, most);
        }
        prop_assert_eq!(open_descriptors(), before);
    }
}
