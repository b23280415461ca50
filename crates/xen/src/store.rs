//! xenstore, the small tree of strings through which toolstack, front end and back end find each other
//! (`docs/misc/xenstore.txt` of Xen).

mod client;
mod wire;

pub use client::{Client, StoreError, Transaction};
pub use wire::{ErrorName, Header, Kind, Permission, WatchEvent, WireError};

#[cfg(any(test, feature = "testing"))]
pub(crate) use wire::strings;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::{self, Read, Write};

    use proptest::prelude::*;

    use super::wire::{encode, strings};
    use super::*;

    /// A stream that reads from a script and keeps the writes.
    #[derive(Default)]
    struct Script {
        replies: VecDeque<u8>,
        written: Vec<u8>,
    }

    impl Script {
        fn reply(mut self, kind: u32, request: u32, payload: &[u8]) -> Self {
            for word in [kind, request, 0, payload.len() as u32] {
                self.replies.extend(word.to_ne_bytes());
            }
            self.replies.extend(payload);
            self
        }

        fn client(self) -> Client<Self> {
            Client::new(self)
        }
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            // The stream gives small pieces, like a real one.
            let len = buffer.len().min(3);
            self.replies.read(&mut buffer[..len])
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_request_has_the_bytes_of_xs_wire_h() {
        let message = encode(Kind::Write, 7, 9, &["a/b"], b"value").unwrap();
        let words: Vec<u32> = message[..16]
            .chunks(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [11, 7, 9, 9]);
        assert_eq!(&message[16..], b"a/b\0value");
    }

    #[test]
    fn a_request_is_as_long_as_the_device_takes_and_no_longer() {
        let fits = vec![b'x'; 4096 - 16 - 2];
        assert_eq!(encode(Kind::Write, 1, 0, &["p"], &fits).unwrap().len(), 4096);
        let error = encode(Kind::Write, 1, 0, &["pp"], &fits).unwrap_err();
        assert_eq!(error, WireError::RequestTooLong(4097));
        assert_eq!(encode(Kind::Read, 1, 0, &["a\0b"], &[]).unwrap_err(), WireError::Nul);
    }

    #[test]
    fn events_between_a_request_and_its_reply_are_kept_once_each() {
        let mut client = Script::default()
            .reply(15, 0, b"backend/vif\0root\0")
            .reply(15, 0, b"backend/vif/1/0/state\0vif\0")
            .reply(15, 0, b"backend/vif/1/0/online\0vif\0")
            .reply(2, 1, b"value")
            .reply(15, 0, b"backend/vif\0root\0")
            .client();
        assert_eq!(client.read("a").unwrap().unwrap(), b"value");
        assert_eq!(client.next_fired().unwrap(), "root");
        client.receive().unwrap();
        assert_eq!(client.fired(), 2);
        assert_eq!(client.next_fired().unwrap(), "vif");
        assert_eq!(client.next_fired().unwrap(), "root");
        assert_eq!(client.next_fired(), None);
    }

    #[test]
    fn a_missing_node_is_no_error_and_others_have_their_name() {
        let mut client = Script::default()
            .reply(16, 1, b"ENOENT\0")
            .reply(16, 2, b"EACCES\0")
            .reply(16, 3, b"EWHAT\0")
            .client();
        assert_eq!(client.read("a").unwrap(), None);
        let refused = client.read("a").unwrap_err();
        assert_eq!(refused.to_string(), "xenstore Read \"a\": EACCES");
        assert_eq!(client.write("a", b"").unwrap_err().name(), Some(ErrorName::Unknown));
    }

    #[test]
    fn a_reply_to_another_request_is_an_error() {
        let mut client = Script::default().reply(2, 2, b"value").client();
        assert!(matches!(
            client.read("a"),
            Err(StoreError::OutOfStep { expected: 1, request: 2, .. })
        ));
        let mut client = Script::default().reply(11, 1, b"OK\0").client();
        assert!(matches!(client.read("a"), Err(StoreError::OutOfStep { got: Kind::Write, .. })));
    }

    #[test]
    fn linux_answers_watches_without_a_number() {
        let mut client = Script::default().reply(4, 0, b"OK\0").reply(2, 0, b"x").client();
        client.watch("a", "token").unwrap();
        assert!(matches!(client.read("a"), Err(StoreError::OutOfStep { .. })));
    }

    #[test]
    fn a_transaction_is_run_again_where_others_wrote_and_dropped_after_an_error() {
        let mut client = Script::default()
            .reply(6, 1, b"5\0")
            .reply(7, 2, b"OK\0")
            .reply(6, 3, b"6\0")
            .reply(16, 4, b"EAGAIN\0")
            .reply(6, 5, b"7\0")
            .reply(7, 6, b"OK\0")
            .client();
        let failed = client.transaction(|_| Err::<(), _>(StoreError::TooManyTries));
        assert!(matches!(failed, Err(StoreError::TooManyTries)));
        let mut runs = 0;
        let count = client.transaction(|_| {
            runs += 1;
            Ok(runs)
        });
        assert_eq!(count.unwrap(), 2);
    }

    #[test]
    fn a_transaction_that_always_conflicts_ends() {
        let mut script = Script::default();
        for request in (1..).step_by(2).take(weir_limits::XENSTORE_TRANSACTION_TRIES_MAX as usize) {
            script = script.reply(6, request, b"5\0").reply(16, request + 1, b"EAGAIN\0");
        }
        assert!(matches!(script.client().transaction(|_| Ok(())), Err(StoreError::TooManyTries)));
    }

    #[test]
    fn a_transaction_without_a_number_is_malformed() {
        for id in [&b"0\0"[..], b"\0", b"five\0", b"-1\0"] {
            let mut client = Script::default().reply(6, 1, id).client();
            let refused = client.transaction(|_| Ok(()));
            assert!(matches!(refused, Err(StoreError::Wire(WireError::Payload { .. }))));
        }
    }

    #[test]
    fn a_connection_that_ends_is_an_error() {
        let mut client = Script::default().client();
        assert!(matches!(client.read("a"), Err(StoreError::Io(_))));
    }

    proptest! {
        #[test]
        fn headers_survive_the_wire(
            kind in 0_u32..20, request: u32, transaction: u32, len in 0_u32..5000,
        ) {
            let mut bytes = [0; 16];
            for (to, word) in bytes.chunks_mut(4).zip([kind, request, transaction, len]) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            match Header::from_bytes(bytes) {
                Ok(header) => {
                    prop_assert_eq!(header.to_bytes(), bytes);
                    prop_assert!(header.len <= 4096);
                }
                Err(WireError::Kind(unknown)) => prop_assert_eq!(unknown, kind),
                Err(error) => {
                    prop_assert_eq!(error, WireError::TooLong(len));
                    prop_assert!(len > 4096);
                }
            }
        }

        #[test]
        fn strings_survive_the_wire(
            texts in proptest::collection::vec("[a-z/0-9]{1,20}", 1..6),
        ) {
            let all: Vec<&str> = texts.iter().map(String::as_str).collect();
            let message = encode(Kind::SetPerms, 1, 0, &all, &[]).unwrap();
            prop_assert_eq!(strings(Kind::SetPerms, &message[16..]).unwrap(), texts);
        }

        #[test]
        fn any_bytes_of_a_server_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut client = Client::new(Script { replies: bytes.into(), written: Vec::new() });
            prop_assert!(client.read("a").is_err() || client.directory("a").is_err());
        }

        #[test]
        fn any_payload_is_survived(
            kind in 1_u32..17, payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let client = || Script::default().reply(kind, 1, &payload).client();
            let _ = client().directory("a");
            let _ = client().permissions("a");
            let _ = client().receive();
            let _ = client().transaction(|_| Ok(()));
        }

        #[test]
        fn permissions_are_what_they_print(domain: u16, read: bool, write: bool) {
            let permission = Permission { domain, read, write };
            prop_assert_eq!(Permission::parse(&permission.to_string()).unwrap(), permission);
        }
    }
}
