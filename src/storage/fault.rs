//! What S3 says where it does not do what it was asked for: its code, its message, and what follows from them.

use reqwest::StatusCode;

use super::xml::{self, Step};

/// An `<Error>` of S3, as an answer of its own or for one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) code: String,
    pub(super) message: String,
}

/// What follows from a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sense {
    /// There is no such object.
    Gone,
    /// We ask more than the store gives: later, and less.
    SlowDown,
    /// It may go well later.
    Later,
    /// We may not do that.
    Denied,
    /// Whatever we ask for with these keys is refused.
    BadKeys,
    /// The store does not know this kind of request.
    Unknown,
    /// It is so, however often it is asked.
    Final,
}

impl Fault {
    /// The error that this answer is, where it is one.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let (mut fault, mut path) = (Self::default(), Vec::new());
        let walked = xml::walk(std::str::from_utf8(body).ok()?, |step| {
            match step {
                Step::Open(name) if path.is_empty() && name != b"Error" => return Err(String::new()),
                Step::Open(name) => path.push(name.to_owned()),
                Step::Close(value) => match (path.pop().as_deref(), path.len()) {
                    (Some(b"Code"), 1) => value.trim().clone_into(&mut fault.code),
                    (Some(b"Message"), 1) => value.trim().clone_into(&mut fault.message),
                    _ => {}
                },
            }
            Ok(())
        });
        walked.is_ok().then_some(fault)
    }

    /// What follows from it, and from the answer's status if it is the answer.
    pub(super) fn sense(&self, status: Option<StatusCode>) -> Sense {
        match self.code.as_str() {
            "NoSuchKey" | "NoSuchVersion" => Sense::Gone,
            "SlowDown"
            | "SlowDownRead"
            | "SlowDownWrite"
            | "ServiceUnavailable"
            | "ServerBusy"
            | "Throttling"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "TooManyRequests" => Sense::SlowDown,
            "InternalError" | "InternalServerError" | "OperationAborted" | "RequestTimeout" => Sense::Later,
            "AuthorizationHeaderMalformed"
            | "ExpiredToken"
            | "InvalidAccessKeyId"
            | "InvalidSecurity"
            | "InvalidToken"
            | "RequestExpired"
            | "RequestTimeTooSkewed"
            | "SignatureDoesNotMatch"
            | "TokenRefreshRequired" => Sense::BadKeys,
            "AccessDenied" => Sense::Denied,
            "NotImplemented" | "MethodNotAllowed" => Sense::Unknown,
            _ => match status.map(|status| status.as_u16()) {
                Some(429 | 503) => Sense::SlowDown,
                Some(401 | 403) => Sense::Denied,
                Some(405 | 501) => Sense::Unknown,
                // Below 300 an answer that says success, with an error in it that we do not know.
                Some(200..300 | 408 | 409 | 500..) => Sense::Later,
                _ => Sense::Final,
            },
        }
    }

    /// In the store's words.
    pub(super) fn words(&self) -> String {
        let said: Vec<&str> =
            [self.code.as_str(), self.message.as_str()].into_iter().filter(|said| !said.is_empty()).collect();
        if said.is_empty() { "an error without words".to_owned() } else { said.join(": ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_by_its_root_and_what_follows_by_its_code_else_by_the_status() {
        let error = |code: &str| {
            format!(
                "<?xml version=\"1.0\"?>\n<Error xmlns=\"x\"><Code>{code}</Code><Message>No &amp; no</Message></Error>"
            )
        };
        for (code, status, sense) in [
            ("SlowDown", 200, Sense::SlowDown),
            ("SlowDown", 503, Sense::SlowDown),
            ("", 429, Sense::SlowDown),
            ("", 503, Sense::SlowDown),
            ("InternalError", 200, Sense::Later),
            ("New", 200, Sense::Later),
            ("", 500, Sense::Later),
            ("", 502, Sense::Later),
            ("AccessDenied", 403, Sense::Denied),
            ("", 401, Sense::Denied),
            ("ExpiredToken", 400, Sense::BadKeys),
            ("SignatureDoesNotMatch", 403, Sense::BadKeys),
            ("NotImplemented", 501, Sense::Unknown),
            ("", 405, Sense::Unknown),
            ("NoSuchKey", 404, Sense::Gone),
            ("NoSuchBucket", 404, Sense::Final),
            ("MalformedXML", 400, Sense::Final),
        ] {
            let fault = Fault::read(error(code).as_bytes()).unwrap();
            assert_eq!((fault.code.as_str(), fault.message.as_str()), (code, "No & no"));
            assert_eq!(fault.sense(StatusCode::from_u16(status).ok()), sense, "{code} {status}");
        }
        assert_eq!(Fault { code: "New".to_owned(), ..Fault::default() }.sense(None), Sense::Final, "of one key");
        for none in ["", "<html></html>", "<DeleteResult><Error><Code>x</Code></Error></DeleteResult>", "<Error><Code>"]
        {
            assert_eq!(Fault::read(none.as_bytes()), None, "{none}");
        }
        let inner = "<Error><Resource><Code>inner</Code></Resource><Code>own</Code></Error>";
        assert_eq!(Fault::read(inner.as_bytes()).unwrap().words(), "own");
    }
}
