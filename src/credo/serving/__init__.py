"""A server for a fitted table: predictions with error bars over HTTP, and a page for people; the extra ``serve``."""

from credo.serving.options import Refusal, ServerOptions
from credo.serving.server import create_app, serve

__all__ = ["Refusal", "ServerOptions", "create_app", "serve"]
