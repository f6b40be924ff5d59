//! Finds the processes that are connected to an engine's socket.
//!
//! The kernel reports which sockets are connected to the one that an engine listens on, and `/proc`
//! shows which process holds the other end. A `docker` command is only a tool: the process that
//! started it counts. A tool whose starter is gone does not count for any process.
//!
//! ```text
//!   engine's socket ◀─ peer's inode ◀─ /proc/PID/fd ─▶ docker compose ─▶ sh ─▶ python bench.py
//! ```
//!
//! A process in another network namespace, such as a container with the engine's socket in it,
//! cannot be distinguished from its neighbours there. So all of them count.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::{Processes, RunningProcess};

/// Programs that count as tools of the process that starts them.
const TOOLS: [&str; 9] =
    ["docker", "docker-compose", "docker-buildx", "podman", "sh", "bash", "dash", "zsh", "timeout"];
/// Size of the receive buffer for the kernel's response.
const BUFFER_SIZE: usize = 1 << 16;
/// The state of a connected socket, as `/proc/net/unix` writes it.
const CONNECTED: &str = "03";

/// The processes that are connected to an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connections {
    /// The connected processes.
    Seen(HashSet<i32>),
    /// They cannot be determined, for this reason.
    Hidden(String),
}

impl Connections {
    /// Lists the processes that are connected to a socket.
    pub fn to(socket: &Path, processes: &Processes) -> Self {
        let Processes::Seen(running) = processes else {
            return Self::Hidden("processes are hidden here".to_owned());
        };
        match peers(socket) {
            Ok(peers) => Self::Seen(users(&peers, &foreign_networks(socket, running), running)),
            Err(error) => Self::Hidden(format!("connections cannot be listed ({error})")),
        }
    }
}

/// Returns the processes that hold one of these sockets or live in one of these network namespaces.
///
/// A tool is replaced by the process that uses it.
fn users(
    peers: &HashSet<u64>,
    networks: &HashSet<u64>,
    running: &[RunningProcess],
) -> HashSet<i32> {
    let me = rustix::process::getpid().as_raw_pid();
    let is_connected = |one: &&RunningProcess| {
        one.handles.as_ref().is_some_and(|handles| {
            networks.contains(&handles.network)
                || handles.sockets.iter().any(|inode| peers.contains(inode))
        })
    };
    let connected = running.iter().filter(|one| one.pid != me).filter(is_connected);
    connected.filter_map(|one| user_of(one, running)).map(|one| one.pid).collect()
}

/// Returns the process that uses a tool: its first ancestor that is not a tool.
fn user_of<'a>(
    tool: &'a RunningProcess,
    running: &'a [RunningProcess],
) -> Option<&'a RunningProcess> {
    let mut one = tool;
    // No chain of parents is longer than there are processes.
    for _ in running {
        if !one.runs.first().is_some_and(|run| TOOLS.contains(&run.name.as_str())) {
            return Some(one);
        }
        one = running.iter().find(|parent| parent.pid == one.parent && parent.pid > 1)?;
    }
    None
}

/// Returns the other network namespaces with a connection to the socket.
fn foreign_networks(socket: &Path, running: &[RunningProcess]) -> HashSet<u64> {
    let own = fs::metadata("/proc/self/ns/net").map(|own| own.ino()).unwrap_or_default();
    let paths = [Some(socket.to_owned()), fs::canonicalize(socket).ok()];
    let mut visited = HashSet::from([own]);
    let mut found = HashSet::new();
    for one in running {
        let Some(handles) = &one.handles else { continue };
        if !visited.insert(handles.network) {
            continue;
        }
        // A process that has ended meanwhile has no connection.
        let table = fs::read(format!("/proc/{}/net/unix", one.pid)).unwrap_or_default();
        // Any process may put any bytes there. They must not hide the other lines.
        let table = String::from_utf8_lossy(&table);
        let is_ours = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let path = fields.get(7).map(Path::new);
            fields.get(5) == Some(&CONNECTED)
                && path.is_some_and(|path| paths.iter().flatten().any(|ours| ours == path))
        };
        if table.lines().any(is_ours) {
            found.insert(handles.network);
        }
    }
    found
}

/// Requests the peers of all connections to a socket from the kernel.
fn peers(socket: &Path) -> io::Result<HashSet<u64>> {
    let file = fs::metadata(socket)?;
    let device = (rustix::fs::major(file.dev()) << 20) | rustix::fs::minor(file.dev());
    let family = AddressFamily::NETLINK;
    let flags = SocketFlags::CLOEXEC;
    let diag = socket_with(family, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
    send(&diag, &request(), SendFlags::empty())?;
    let (mut buffer, mut peers) = (vec![0; BUFFER_SIZE], HashSet::new());
    loop {
        let (length, _) = recv(&diag, buffer.as_mut_slice(), RecvFlags::empty())?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in messages(&buffer[..length]) {
            match message {
                NetlinkMessage::Done => return Ok(peers),
                NetlinkMessage::Failed => return Err(io::ErrorKind::Unsupported.into()),
                NetlinkMessage::Socket { file: Some(it), peer: Some(peer) }
                    if u64::from(it.0) == file.ino() & 0xffff_ffff
                        && it.1 == device
                        // A socket whose other end is closed has no peer.
                        && peer != 0 =>
                {
                    peers.insert(u64::from(peer));
                }
                NetlinkMessage::Socket { .. } => {}
            }
        }
    }
}

/// Returns the request for all connected unix sockets, with their files and their peers.
fn request() -> Vec<u8> {
    const BY_FAMILY: u16 = 20;
    const REQUEST_DUMP: u16 = 0x301;
    const UNIX: u8 = 1;
    const ESTABLISHED: u32 = 1 << 1;
    const SHOW_FILE_AND_PEER: u32 = 0x2 | 0x4;
    let mut body = vec![UNIX, 0, 0, 0];
    for word in [ESTABLISHED, 0, SHOW_FILE_AND_PEER, 0, 0] {
        body.extend(word.to_ne_bytes());
    }
    let length = u32::try_from(16 + body.len()).expect("a request has 40 bytes");
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    request
}

/// One message of the kernel's response.
#[derive(Debug, PartialEq, Eq)]
enum NetlinkMessage {
    /// One socket: inode and device of its file, and its peer's inode.
    Socket { file: Option<(u32, u32)>, peer: Option<u32> },
    /// The end of the response.
    Done,
    /// The kernel reports an error.
    Failed,
}

/// Parses the messages of a response; a truncated one ends the list.
fn messages(bytes: &[u8]) -> Vec<NetlinkMessage> {
    const HEADER: usize = 16;
    const FAILED: u16 = 2;
    const DONE: u16 = 3;
    let mut found = Vec::new();
    let mut rest = bytes;
    while let (Some(length), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length < HEADER || length > rest.len() {
            break;
        }
        found.push(match kind {
            DONE => NetlinkMessage::Done,
            FAILED => NetlinkMessage::Failed,
            _ => socket(&rest[HEADER..length]),
        });
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    found
}

/// Parses the description of one socket.
fn socket(body: &[u8]) -> NetlinkMessage {
    const FIXED: usize = 16;
    const FILE: u16 = 1;
    const PEER: u16 = 2;
    let (mut file, mut peer) = (None, None);
    let mut rest = body.get(FIXED..).unwrap_or_default();
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        if length < 4 || length > rest.len() {
            break;
        }
        match kind {
            FILE => file = u32_at(rest, 4).zip(u32_at(rest, 8)),
            PEER => peer = u32_at(rest, 4),
            _ => {}
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    NetlinkMessage::Socket { file, peer }
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(place..place + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], place: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(place..place + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use super::*;
    use crate::recipe::{Handles, ProgramName, RunAs};

    #[test]
    fn the_holder_of_a_connection_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("engine.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let other = UnixListener::bind(directory.path().join("other.sock")).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        let _accepted = listener.accept().unwrap();
        let _foreign = UnixStream::connect(directory.path().join("other.sock")).unwrap();
        let _accepted_too = other.accept().unwrap();
        let inode = |descriptor: &dyn std::os::fd::AsRawFd| {
            let link = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
            link.unwrap().to_str().unwrap()["socket:[".len()..].trim_end_matches(']').parse()
        };
        let ours: u64 = inode(&stream).unwrap();
        assert_eq!(peers(&path).unwrap(), HashSet::from([ours]));
        drop(stream);
        assert_eq!(peers(&path).unwrap(), HashSet::new());
    }

    #[test]
    fn another_process_that_is_connected_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("engine.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let script = "import socket,sys,time\ns=socket.socket(socket.AF_UNIX)\n\
                      s.connect(sys.argv[1])\ntime.sleep(1000)";
        let mut child = Command::new("python3").args(["-c", script]).arg(&path).spawn().unwrap();
        let _accepted = listener.accept().unwrap();
        let Connections::Seen(seen) = Connections::to(&path, &Processes::seen_here()) else {
            panic!("connections are hidden here");
        };
        let pid = i32::try_from(child.id()).unwrap();
        assert_eq!(seen, HashSet::from([pid]));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn process(pid: i32, parent: i32, name: &str, sockets: &[u64]) -> RunningProcess {
        RunningProcess {
            pid,
            parent,
            runs: vec![ProgramName { how: RunAs::Program, name: name.to_owned() }],
            command: name.to_owned(),
            started: std::time::Duration::ZERO,
            container: None,
            handles: Some(Handles { sockets: sockets.to_vec(), network: 7, ..Handles::default() }),
        }
    }

    #[test]
    fn the_process_that_started_a_tool_counts_and_an_orphan_does_not() {
        let running = [
            process(1, 0, "systemd", &[]),
            process(10, 1, "python3", &[]),
            process(11, 10, "sh", &[]),
            process(12, 11, "docker", &[100]),
            process(20, 1, "docker-compose", &[101]),
            process(30, 1, "node", &[102]),
            process(40, 1, "node", &[103]),
        ];
        let peers = HashSet::from([100, 101, 102]);
        assert_eq!(users(&peers, &HashSet::new(), &running), HashSet::from([10, 30]));
        let neighbours = users(&HashSet::new(), &HashSet::from([7]), &running);
        assert!(neighbours.contains(&40), "{neighbours:?}");
    }

    #[test]
    fn a_truncated_or_invalid_response_is_not_trusted() {
        assert_eq!(messages(&[]), []);
        assert_eq!(messages(&[9; 7]), []);
        let mut done = 16u32.to_ne_bytes().to_vec();
        done.extend(3u16.to_ne_bytes());
        done.extend([0; 10]);
        assert_eq!(messages(&done), [NetlinkMessage::Done]);
        assert_eq!(socket(&[0; 18]), NetlinkMessage::Socket { file: None, peer: None });
    }
}
