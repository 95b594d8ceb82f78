"""The workers of the application in app.py: they hand mails to a mail server, by SMTP.

    embedlog work deliver:deliver ./mail-data --app-dir examples/mail

A mail is delivered at least once: a worker that is killed after the server has taken it, and before the job
is accepted, leaves it to another. The Message-ID is the job's, so that both are known as one.
"""

from __future__ import annotations

import os
import smtplib
from email.message import EmailMessage
from typing import Any

from pydantic import BaseModel

import embedlog

SERVER = os.environ.get("MAIL_SERVER", "localhost:25")
OPTIONS: dict[str, Any] = {
    "group": "mailers",
    "lock_ms": int(os.environ.get("LOCK_MS", "30000")),
    "max_deliveries": 3,
    "backoff_ms": int(os.environ.get("BACKOFF_MS", "5000")),
}


class Mail(BaseModel):
    to: str
    subject: str
    text: str


@embedlog.worker("mails", Mail, concurrency=4, **OPTIONS)
def deliver(job: embedlog.Job[Mail]) -> None:
    mail = job.value
    assert mail is not None
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.org", mail.to, mail.subject
    message["Message-ID"] = f"<{job.topic}-{job.partition}-{job.offset}@shop.example.org>"
    message.set_content(mail.text)
    host, _, port = SERVER.rpartition(":")
    with smtplib.SMTP(host, int(port), timeout=30) as server:
        server.send_message(message)
