"""Questions about documents over HTTP: pieces of them, vectors, reranking, an answer with sources.

    python examples/answer_documents.py FOLDER EMBEDDER LANGUAGE_MODEL [RERANKER]
    curl localhost:8000/ask -d '{"question": "When does the library open?"}'

FOLDER has text files. Needs aggml[serve]. A client that hangs up ends the work of its question.
"""

import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aggml.models import load, rank
from aggml.pipeline import Stage, Urgent, run

PIECE, NEAR, USED = 600, 12, 3  # characters; pieces that are found, and that the answer uses
Piece = tuple[str, str]  # the name of a document, a piece of its text
Found = tuple[str, list[Piece]]  # a question, the pieces for it


def application(folder: str, embedder: str, model: str, reranker: str | None = None) -> Starlette:
    state: dict[str, Any] = {}

    async def pieces(path: anyio.Path) -> AsyncIterator[Piece]:
        text = await path.read_text(errors="replace")
        for first in range(0, len(text), PIECE):
            yield path.name, text[first : first + PIECE]

    async def vectors(items: list[Piece]) -> list[Any]:
        return [*zip(items, await state["embedder"].embed([x[1] for x in items]), strict=True)]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            files = {"embedder": embedder, "model": model, "reranker": reranker}
            for name, file in files.items():
                state[name] = await stack.enter_async_context(load(file)) if file else None
            paths = anyio.Path(folder).glob("*.txt")
            async with run(paths, pieces, Stage(vectors, batch=32)) as results:
                found = [x async for x in results]
            state["pieces"] = [item for item, _ in found]
            state["vectors"] = np.stack([vector for _, vector in found])
            yield

    async def find(question: str) -> Found:
        scores = state["vectors"] @ (await state["embedder"].embed([question]))[0]
        return question, [state["pieces"][i] for i in np.argsort(-scores)[:NEAR]]

    async def rerank(found: Found) -> Found:
        question, near = found
        if state["reranker"] is not None:
            scores = await state["reranker"].rerank(question, [x[1] for x in near])
            near = [near[x.index] for x in rank(scores)]
        return question, near[:USED]

    async def answer(found: Found) -> dict[str, Any]:
        question, near = found
        known = "\n".join(text for _, text in near)
        tokens = state["model"].generate(
            f"{known}\n\nQuestion: {question}\nAnswer:", max_tokens=48, stop="\n"
        )
        text = "".join([x.text async for x in tokens])
        return {"answer": text.strip(), "sources": [name for name, _ in near]}

    async def ask(request: Request) -> Response:
        question = Urgent((await request.json())["question"], priority=1, deadline=60)
        response = Response(status_code=499)
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await request.receive()  # after the body comes the end of the connection
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            async with run([question], find, rerank, answer) as results:
                response = JSONResponse(await anext(results))
            tasks.cancel_scope.cancel()
        return response

    return Starlette(routes=[Route("/ask", ask, methods=["POST"])], lifespan=lifespan)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(application(*sys.argv[1:5]), port=8000)
