//! The CGI interface to `git http-backend`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::web::WebRequest;

/// The number of bytes of a body that pass before a fault in the middle of it.
const MIDDLE: u64 = 100 * 1024;

/// How much of a response was passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PassedPart {
    /// The whole response.
    Whole,
    /// Only its beginning.
    Part,
}

/// Answers a request through the backend: completely, or only the beginning.
pub(super) fn respond(
    request: &WebRequest,
    root: &Path,
    client: &mut TcpStream,
    only_beginning: bool,
) -> io::Result<PassedPart> {
    let mut backend = GitBackend::start(request, root)?;
    backend.input.take().map_or(Ok(()), |mut input| input.write_all(&request.body))?;
    let mut output = BufReader::new(&mut backend.output);
    let head = read_head(&mut output)?;
    client.write_all(head.as_bytes())?;
    if !only_beginning {
        io::copy(&mut output, client)?;
        return Ok(PassedPart::Whole);
    }
    io::copy(&mut output.by_ref().take(MIDDLE), client)?;
    let more = !output.fill_buf()?.is_empty();
    Ok(if more { PassedPart::Part } else { PassedPart::Whole })
}

/// A started backend. It is ended and waited for on drop.
struct GitBackend {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl GitBackend {
    fn start(request: &WebRequest, root: &Path) -> io::Result<Self> {
        let header = |name| request.header(name).unwrap_or_default();
        let mut child = Command::new("git")
            .arg("http-backend")
            .env("GIT_PROJECT_ROOT", root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_PROTOCOL", header("git-protocol"))
            .env("REQUEST_METHOD", &request.method)
            .env("PATH_INFO", &request.path)
            .env("QUERY_STRING", &request.query)
            .env("CONTENT_TYPE", header("content-type"))
            .env("CONTENT_LENGTH", request.body.len().to_string())
            .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
            .env("REMOTE_ADDR", "127.0.0.1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, input, output })
    }
}

impl Drop for GitBackend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the head of a CGI response, and returns it as that of an HTTP response.
fn read_head(output: &mut impl BufRead) -> io::Result<String> {
    let (mut status, mut headers) = ("200 OK".to_owned(), String::new());
    loop {
        let mut line = String::new();
        if output.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        match line.strip_prefix("Status: ") {
            Some(value) => status = value.to_owned(),
            None => headers += &format!("{line}\r\n"),
        }
    }
    Ok(format!("HTTP/1.1 {status}\r\n{headers}Connection: close\r\n\r\n"))
}
