<?php
// A small Laravel application, from Debian's packages.
require '/usr/share/php/Illuminate/autoload.php';
require __DIR__ . '/../app/Http/Middleware/NameUser.php'; // of the recipe
require __DIR__ . '/../app/Http/Kernel.php';

$app = new Illuminate\Foundation\Application(dirname(__DIR__));
$app->singleton(Illuminate\Contracts\Http\Kernel::class, App\Http\Kernel::class);
$app->singleton(Illuminate\Contracts\Debug\ExceptionHandler::class, Illuminate\Foundation\Exceptions\Handler::class);
$app->booted(fn ($app) => $app['router']->middleware('web')->group(__DIR__ . '/../routes/web.php'));
$kernel = $app->make(Illuminate\Contracts\Http\Kernel::class);
$response = $kernel->handle($request = Illuminate\Http\Request::capture());
$response->send();
$kernel->terminate($request, $response);
