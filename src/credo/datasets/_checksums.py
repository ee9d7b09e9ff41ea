"""The sha256 of every file that :mod:`credo.datasets.files` reads, by its path in the data folder."""

from __future__ import annotations

SHA256: dict[str, str] = {
    "camvid/camvid_120x160.npz": "c005b13be0cce1ab2148ca7e98e4481fa7f19a40035917fa46f72606fc7be93c",
    "fashion-mnist/t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "fashion-mnist/t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    "mnist/t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "mnist/t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "mnist/train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "mnist/train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "mushroom/agaricus-lepiota.data.gz": "8484c6f4da082e1d5cf964c46b97aa588c17fd4965417dc529e71cfc0aaf286f",
    "notmnist/t10k-images-idx3-ubyte.gz": "70ae9e06201f2827e5b0a3781a3169d735dd2efc69996b9eeaee7f10ed4044d7",
    "notmnist/t10k-labels-idx1-ubyte.gz": "1fa03836e01c862542f8eb83463bb951bebec6fcb3efa28dad748c6b38a9021b",
    "ptb/ptb.test.txt.gz": "b9743208d38e095719ea30645a6456bd2cabe3b3dfe0815ad10a51d08b4e2a48",
    "ptb/ptb.train.txt.gz": "d1ec43563d7ce27da8b43f9069b2a58cb9e7f2656e96d7aab0ddc61ef728e176",
    "ptb/ptb.valid.txt.gz": "fdb970a6bddedf957366618daec55ab7beb159f8123600f8db16c34833dca93d",
    "small/frey_faces.npz": "5f8125f0f1d3f108b5076a7a25795d23555ed39d1dbe5caacd0be71487c208bb",
    "small/mauna_loa_co2.npz": "e99adfd8b3348a29033362291a9388ce2a32ce80f25a140f94408f7c19cf8167",
    "small/oil_flow.npz": "9a3bd98561ec38ce3307cf0f2d6d17482b239ca4630675a385e16e1eacbf8daa",
    "small/old_faithful.npz": "7ce1496f6e4cf4e94bc32206d43fe7fe17e47571929789e7050a0c8e29038e80",
    "uci/bostonHousing.npz": "af3651aa9ab9f08ddd86f064dc0638ee614b2c6dde8e0602398bca70956f9db6",
    "uci/concrete.npz": "ff9bb4c0edf4cd7c98adc431bc50169a4ba78fc6d47ba568f10c9dd5548c70e0",
    "uci/energy.npz": "fbe0b4f1798014854129db96f8178bf19b20c6be8a765b24426a63af2b1cfa34",
    "uci/kin8nm.npz": "6d7a0c7b0e4c46d3f0d1ff330f0ef9c453b14b335e5b05c7a665bbaeaf512d5d",
    "uci/naval-propulsion-plant.npz": "9c380a843f1f196046bbf56dc547a545551d6a906ec6d3d44ebe091d3ef4819d",
    "uci/power-plant.npz": "ea8d4a9f8b147bb7566e21e8d87a1f1ca09f3836a8c6196d6be3985c5a290128",
    "uci/protein-tertiary-structure.npz": "06b6c6134f63b9722372d433f9f92ce2628836a6f29baf7af2c3ac527fed7a03",
    "uci/wine-quality-red.npz": "b167ddd3778d32aef708ee5ef6b2cf4332bc48ec3329d3a241a3661e53e68336",
    "uci/yacht.npz": "3d5b59f1d8a77fa08e8747f00108dcdd209946ae06221361d02537a97c1a2d77",
}
