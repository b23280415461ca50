//! Processes that confine themselves, and their remaining rights: `weir-sandbox-probe`, once for each case.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use weir_sandbox::{Identity, IdentityError};

/// Another process, which attempts `what`.
fn probe(what: &str) -> Output {
    let mut probe = Command::new(env!("CARGO_BIN_EXE_weir-sandbox-probe"));
    probe.arg(what).stdin(Stdio::null()).output().unwrap()
}

fn says(output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn is_ended(what: &str) {
    let output = probe(what);
    assert!(says(&output).contains("confined"), "{what}: {}", says(&output));
    let signal = output.status.signal();
    assert_eq!(signal, Some(Signal::SYS.as_raw()), "{what}: {}", says(&output));
}

fn goes_on(what: &str) {
    let output = probe(what);
    assert!(output.status.success(), "{what}: {}", says(&output));
    assert!(says(&output).contains("confined"), "{what}: {}", says(&output));
}

#[test]
fn every_thread_has_no_capability_and_a_filter() {
    goes_on("status");
}

#[test]
fn files_that_are_not_named_are_not_opened_and_none_is_written() {
    goes_on("files");
}

#[test]
fn no_socket_is_made() {
    goes_on("sockets");
}

#[test]
fn the_keeper_opens_nothing() {
    goes_on("keeper");
    is_ended("a keeper connects");
}

#[test]
fn a_system_call_that_is_on_no_list_is_the_end() {
    is_ended("directory");
    is_ended("process");
}

#[test]
fn a_c_library_that_asks_something_new_is_answered_and_not_ended() {
    goes_on("asks");
    goes_on("a keeper asks");
}

#[test]
fn a_trial_forbids_nothing() {
    goes_on("log");
}

#[test]
fn who_moves_packets_opens_nothing() {
    goes_on("thread's files");
}

#[test]
fn a_thread_is_ended_for_what_others_do() {
    is_ended("a worker lists");
    is_ended("a session lists");
}

#[test]
fn a_process_with_threads_is_not_confined() {
    goes_on("threads");
}

#[test]
fn root_becomes_a_user_of_its_own_for_good() {
    if !weir_testing::is_root("to become another user") {
        return;
    }
    // The attempt calls `set_thread_uid` in this process, and no list of permitted calls has it.
    is_ended("user");
}

#[test]
fn users_are_found_by_name_and_by_number_and_root_is_none() {
    let nobody = Identity::named("nobody").unwrap();
    assert_eq!(Identity::named(&nobody.uid.to_string()).unwrap(), nobody);
    let number = Identity::named("1234567").unwrap();
    assert_eq!(number, Identity { uid: 1_234_567, gid: 1_234_567 });
    for root in ["root", "0"] {
        assert!(matches!(Identity::named(root), Err(IdentityError::Root(_))), "{root}");
    }
    assert!(matches!(Identity::named("no such user"), Err(IdentityError::Unknown(_))));
}
